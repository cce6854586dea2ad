//! One run and the operations on it.

pub(crate) mod checkout;
pub(crate) mod drive;
pub(crate) mod edit;
pub(crate) mod grimoires;
pub(crate) mod item_files;
pub(crate) mod local;
pub(crate) mod notify;
pub(crate) mod open;
pub(crate) mod retention;
pub(crate) mod run_task;
pub(crate) mod thread_pool;
pub(crate) mod traces;
pub(crate) mod webhook;
