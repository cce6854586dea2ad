//! Processes of a fleet: their registration, heartbeats and deaths, workers, and coordinators.

pub(crate) mod coordinator;
pub(crate) mod member;
pub(crate) mod systemd;
pub(crate) mod worker;
