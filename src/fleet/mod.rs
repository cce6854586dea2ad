//! Doing what a run is owed: here the pure middle meets the disk, the clock and child processes.

pub mod config;
pub mod credentials;
pub mod doctor;
mod lifecycle;
pub mod local;
pub mod perform;
pub mod prepare;
pub mod site;
pub mod systemd;

pub use config::Config;
pub use local::{Driver, Finish, Report};
pub use site::Site;
