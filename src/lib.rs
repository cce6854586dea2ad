//! A workflow engine and a fleet of agents over plain files.

pub mod offline;
