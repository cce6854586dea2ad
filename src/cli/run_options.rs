//! Flags that decide how a run is driven.
use super::invocation::Invocation;
use crate::engine::{OnError, Policy};
use crate::run::failure::Failure;
use crate::run::local::DriveOptions;
use crate::view::progress::Telling;
use crate::workflow::Plan;
use crate::workflow::plan::Dialect;

/// Flags that decide how a run goes.
#[derive(clap::Args, Clone, Debug, Default)]
pub(crate) struct RunOptions {
    /// Show where the run is, as it goes
    #[arg(long)]
    pub progress: bool,
    /// Back up the state before each step (the last three are kept)
    #[arg(long)]
    pub backup_state: bool,
    /// What follows a failure that the workflow does not handle
    #[arg(long, value_enum, value_name = "WHAT")]
    pub on_error: Option<OnErrorArg>,
    /// How often a failed provider step is tried again, where it does not say so itself
    #[arg(long, value_name = "N")]
    pub max_retries: Option<u32>,
    /// How many nodes go on at once; steps go one after the other [default: 8]
    #[arg(long, value_name = "N", value_parser = at_least_one)]
    pub jobs: Option<usize>,
    /// How long to wait before trying again
    #[arg(long, value_name = "MS")]
    pub retry_delay: Option<u64>,
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
pub(crate) enum OnErrorArg {
    /// End the run; `resume` goes on from there
    Stop,
    /// Run what is left, then end as failed
    Continue,
    /// Ask
    Interactive,
}

impl RunOptions {
    /// Returns the options of the process that drives the run.
    pub(crate) fn drive_options(&self) -> DriveOptions {
        DriveOptions { backups: self.backup_state, jobs: self.jobs }
    }

    /// Returns the policy of a new run.
    pub(crate) fn new_policy(&self, invocation: &Invocation) -> Policy {
        self.policy(Policy::default().limit_visits(invocation.config.max_visits))
    }

    /// Returns `base`, overridden by these flags.
    pub(crate) fn policy(&self, base: Policy) -> Policy {
        let on_error = self.on_error.map(|choice| match choice {
            OnErrorArg::Stop => OnError::Stop,
            OnErrorArg::Continue => OnError::Continue,
            OnErrorArg::Interactive => OnError::Interactive,
        });
        Policy {
            on_error: on_error.or(base.on_error),
            max_retries: self.max_retries.unwrap_or(base.max_retries),
            retry_delay_ms: self.retry_delay.unwrap_or(base.retry_delay_ms),
            ..base
        }
    }
}

/// The process that drives a run, for checking the flags of that run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Driver {
    /// This process, which also executes every step.
    Alone,
    /// This process; workers execute the steps.
    ForFleet,
    /// A coordinator, at some later time.
    Coordinator,
}

impl Driver {
    /// Returns the driver for a run that this process drives.
    pub(crate) fn here(fleet: bool) -> Driver {
        if fleet { Driver::ForFleet } else { Driver::Alone }
    }
}

impl RunOptions {
    /// Returns one of the flags that are set, or `None`. Only the process that drives a run uses
    /// these flags.
    pub(crate) fn any(&self) -> Option<&'static str> {
        let flags = [
            ("--progress", self.progress),
            ("--backup-state", self.backup_state),
            ("--on-error", self.on_error.is_some()),
            ("--max-retries", self.max_retries.is_some()),
            ("--jobs", self.jobs.is_some()),
            ("--retry-delay", self.retry_delay.is_some()),
        ];
        flags.iter().find(|(_, given)| *given).map(|(flag, _)| *flag)
    }

    /// Rejects all of these flags, for a command that does not drive the run itself. `why` is the
    /// reason for the message.
    pub(crate) fn check_none(&self, why: &str) -> Result<(), Failure> {
        match self.any() {
            Some(flag) => {
                let message = format!("`{flag}` does nothing here: {why}");
                Err(Failure::invalid(message).hint("leave it out"))
            }
            None => Ok(()),
        }
    }

    /// Rejects flags that have no effect for this workflow or this driver, so that the user does
    /// not rely on them.
    pub(crate) fn check(&self, plan: &Plan, driver: Driver) -> Result<(), Failure> {
        let nodes = plan.dialect() == Dialect::Nodes;
        let of_steps = [
            ("--on-error", self.on_error.is_some(), "a node says `trigger_rule`"),
            ("--max-retries", self.max_retries.is_some(), "a node says `retry`"),
            ("--retry-delay", self.retry_delay.is_some(), "a node says `retry: { delay_ms }`"),
        ];
        let given = of_steps.iter().find(|(_, given, _)| *given && nodes);
        if let Some((flag, _, hint)) = given {
            let message = format!("`{flag}` does nothing for a workflow of `nodes:`");
            return Err(Failure::invalid(message).hint(hint));
        }
        if self.jobs.is_some() && !nodes {
            let message = "`--jobs` does nothing for steps, which go one after the other";
            return Err(Failure::invalid(message).hint("leave it out"));
        }
        self.check_driver(driver)
    }

    fn check_driver(&self, driver: Driver) -> Result<(), Failure> {
        if self.jobs.is_some() && driver != Driver::Alone {
            let message = "`--jobs` does nothing for a run of a fleet: its workers say how much \
                           goes on at once";
            return Err(Failure::invalid(message)
                .hint("leave it out; `orchestrate worker AGENT --concurrency N` says it"));
        }
        if driver != Driver::Coordinator {
            return Ok(());
        }
        if matches!(self.on_error, Some(OnErrorArg::Interactive)) {
            let message = "`--on-error interactive` needs a person, and a submitted run has none";
            return Err(Failure::invalid(message)
                .hint("`orchestrate run --fleet` and `orchestrate resume RUN` drive it here"));
        }
        let shown = [("--progress", self.progress), ("--backup-state", self.backup_state)];
        match shown.iter().find(|(_, given)| *given) {
            Some((flag, _)) => {
                let message = format!("`{flag}` does nothing here: a coordinator drives the run");
                Err(Failure::invalid(message).hint(
                    "`orchestrate run --fleet` and `orchestrate resume RUN` drive it here, \
                     `orchestrate logs RUN --follow` looks on",
                ))
            }
            None => Ok(()),
        }
    }
}

fn at_least_one(text: &str) -> Result<usize, String> {
    let number = text.parse().ok().filter(|number| *number > 0);
    number.ok_or_else(|| "it must be a number from 1 on".into())
}

/// Returns the amount of progress output for a run.
pub(crate) fn telling(invocation: &Invocation, options: &RunOptions) -> Telling {
    match (invocation.common.quiet, options.progress) {
        (true, _) => Telling::Quiet,
        (false, true) => Telling::Progress { live: invocation.has_screen() },
        (false, false) => Telling::Plain,
    }
}
