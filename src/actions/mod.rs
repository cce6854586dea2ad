//! Operations that users request on runs and tasks. The command line, `top`, and `serve` call them.

pub(crate) mod checkout;
pub(crate) mod target;
