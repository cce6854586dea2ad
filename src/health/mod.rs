//! Checks: `doctor` examines machine, volume and programs; `fsck` examines stored state.

pub(crate) mod doctor;
pub(crate) mod fsck;
