//! Doing what a run is owed: here the pure middle meets the disk, the clock and child processes.

pub mod config;
pub mod coordinator;
pub mod credentials;
pub mod drive;
pub mod hint;
mod lifecycle;
pub mod local;
pub mod member;
pub mod open;
pub mod perform;
mod pool;
pub mod post;
pub mod prepare;
pub mod run_task;
pub mod site;
pub mod systemd;
pub mod work;
pub mod worker;

pub use config::Config;
pub use drive::{Drive, Report};
pub use local::Finish;
pub use site::Site;
