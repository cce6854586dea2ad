//! Checks: `doctor` examines machine, volume and programs; `fsck` examines stored state.

pub mod doctor;
pub mod fsck;
