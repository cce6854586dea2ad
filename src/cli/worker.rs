//! `orchestrate worker`: serves one agent's inbox.

use std::sync::Arc;

use super::invocation::Invocation;
use super::{Common, fleet, signals};
use crate::attempt::documents::COORDINATOR;
use crate::attempt::parking;
use crate::base::ids::name_fault;
use crate::exec;
use crate::fleet::worker::{self, Setup, Until};
use crate::run::failure::Failure;
use crate::yaml::problem::nearest;

#[derive(clap::Args, Clone, Debug)]
pub(super) struct WorkerArgs {
    /// The agent whose inbox is served: tasks in inbox/AGENT/
    #[arg(value_name = "AGENT")]
    pub agent: String,
    /// How many tasks are executed at once [default: as the agent's settings say, else 1]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub concurrency: Option<u32>,
    /// Execute one task, then end
    #[arg(long, conflicts_with_all = ["drain", "concurrency"])]
    pub once: bool,
    /// End when nothing is waiting any more
    #[arg(long)]
    pub drain: bool,
    /// End, and give back what is at hand, when standard input ends
    #[arg(long, hide = true)]
    pub leash: bool,
}

/// Warns if the agent is not configured and its name resembles a configured one.
fn warn_of_unknown(invocation: &Invocation, agent: &str) {
    let known = invocation.config.agents();
    let near = nearest(agent, known.keys().map(String::as_str));
    if let Some(near) = near.filter(|_| !known.contains_key(agent)) {
        tracing::warn!(
            "`{agent}` is not among the configured agents; did you mean `{near}`? This worker \
             serves inbox/{agent} all the same"
        );
    }
}

pub(super) fn main(args: &WorkerArgs, common: &Common) -> Result<u8, Failure> {
    let mut invocation = Invocation::read(common)?;
    let credentials = fleet::take_credentials(&mut invocation)?;
    if let Some(fault) = name_fault(&args.agent) {
        let message = format!("`{}` cannot name an agent: {fault}", args.agent);
        return Err(Failure::invalid(message));
    }
    if args.agent == COORDINATOR {
        let message = "no worker can serve `coordinator`: what lies there are runs";
        return Err(Failure::invalid(message).hint("`orchestrate coordinator` drives them"));
    }
    let queue = invocation.open_queue()?;
    fleet::open_agents(&queue, std::slice::from_ref(&args.agent))?;
    fleet::check_inbox(&invocation, &queue, &args.agent)?;
    warn_of_unknown(&invocation, &args.agent);
    let signals = signals::listen()?;
    exec::start_guard();
    let until = match (args.once, args.drain) {
        (true, _) => Until::Once,
        (_, true) => Until::Empty,
        _ => Until::Told,
    };
    let concurrency = match until {
        Until::Once => 1,
        _ => args.concurrency.unwrap_or(invocation.config.agent(&args.agent).concurrency),
    };
    let mut teller = fleet::Teller::new(&invocation, &args.agent);
    if args.leash {
        signals.heed_leash();
        teller = teller.unnamed();
    }
    let me = queue.me();
    teller.say(&format!("worker {me} serves inbox/{}, {concurrency} at a time", args.agent));
    let setup = Setup {
        workspace: invocation.open_workspace()?,
        agent: args.agent.clone(),
        concurrency,
        until,
        environment: invocation.environment.clone(),
        credentials,
        program: crate::attempt::exec_env::program(),
        config: fleet::settings(&invocation),
        queue,
    };
    let tally = worker::serve(setup, &signals.stop, Arc::new(teller))
        .map_err(|error| fleet::had_to_end("the worker", &error))?;
    if signals.stop.level() > 1 {
        return Ok(signals.code());
    }
    if until != Until::Told && tally.failed == 0 && tally.parked {
        for parked in parking::look(&invocation.workspace).unwrap_or_default() {
            invocation.note(parking::told(&parked));
        }
        return Ok(3);
    }
    let failed = until != Until::Told && tally.failed > 0;
    Ok(u8::from(failed))
}
