//! Doing what a run is owed: here the pure middle meets the disk, the clock and child processes.

pub mod answer;
pub mod artifacts;
mod ask;
pub mod check;
pub mod conclude;
pub mod config;
pub mod coordinator;
pub mod credentials;
pub mod doctor;
pub mod drive;
pub mod free;
pub mod gates;
pub mod hint;
pub mod intake;
mod lifecycle;
pub mod local;
pub mod member;
pub mod open;
pub mod parts;
pub mod perform;
mod pool;
pub mod post;
pub mod prepare;
pub mod providers;
pub mod retain;
pub mod run_task;
pub mod say;
pub mod site;
pub mod systemd;
pub mod torture;
pub mod work;
pub mod worker;

pub use config::Config;
pub use drive::{Drive, Report};
pub use local::Finish;
pub use site::Site;
