//! Processes of a fleet: their registration, heartbeats and deaths, workers, and coordinators.

pub mod coordinator;
pub mod member;
pub mod systemd;
pub mod torture;
pub mod worker;
