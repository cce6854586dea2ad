//! Checks and diagnosis: `doctor` examines machine, volume and programs, `fsck` examines stored
//! state, and a bundle collects facts for a maintainer.

pub(crate) mod bundle;
pub(crate) mod doctor;
pub(crate) mod fsck;
