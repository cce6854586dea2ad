//! Doing what a run is owed: here the pure middle meets the disk, the clock and child processes.

pub mod config;
pub mod drive;
mod lifecycle;
pub mod local;
pub mod perform;
pub mod prepare;
pub mod site;
pub mod work;

pub use config::Config;
pub use drive::{Drive, Report};
pub use local::Finish;
pub use site::Site;
