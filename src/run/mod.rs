//! One run and the operations on it.

pub mod checkout;
pub mod drive;
pub mod edit;
pub mod grimoires;
pub(crate) mod item_files;
pub mod local;
pub mod notify;
pub mod open;
pub mod retention;
pub mod run_task;
pub(crate) mod thread_pool;
pub mod traces;
pub(crate) mod webhook;
