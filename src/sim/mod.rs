//! The whole fleet on simulated machines, driven by a seed.
//!
//! The real coordinators and workers run here, with the real queue, store and engine: all their
//! threads, on a simulated clock, disk and network file system. Only what is outside of them is
//! played: children (a scripted executor in place of `perform::run`), inotify (there is none), the
//! workspace's own files, and what people drop into inboxes.
//!
//! A seed has two phases. First anything may fail, and nothing wrong may happen. Then faults stop,
//! and everything must come to its end.
//!
//! `ORCHESTRATE_SIM_SEED=7` plays one seed and tells all of it; `ORCHESTRATE_SIM_RUNS=100000` plays
//! more.

mod failing;
mod judge;
mod plant;
mod sched;
mod script;
mod tests;
mod volume;
mod world;
