//! x
pub mod capture;
pub mod mask;
mod tail;
