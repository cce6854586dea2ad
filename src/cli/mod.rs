//! The command line: one file for each verb.
//!
//! Standard output is data, standard error is messages. Exit codes: 0 completed, 1 failed, 2 bad
//! usage or input, 3 paused for a user, 4 cancelled, 5 owned by another process, 7 stored state is
//! damaged, 128 + n stopped by signal n.

pub(crate) mod act;
pub(crate) mod agent_output;
mod cancel;
mod clean;
mod clean_trees;
mod command;
mod complete;
mod completions;
mod confine;
mod coordinator;
mod debug_bundle;
mod decide;
pub(crate) mod deferred_args;
mod demo;
mod doctor;
mod end_children;
mod enqueue;
mod events;
mod failure;
mod fleet;
pub(crate) mod follow_loop;
mod fsck;
mod graph;
mod help;
mod here;
mod init;
pub(crate) mod invocation;
pub(crate) mod logs;
mod metrics;
mod offline;
mod outcome;
mod output;
mod pending;
mod provider;
mod ps;
mod queue;
pub(crate) mod report;
mod request_args;
mod resume;
mod retry;
mod run;
mod run_options;
mod run_step;
mod schema;
mod serve;
mod service;
mod signals;
mod spell;
mod standing;
pub(crate) mod status;
mod submit;
mod top;
mod up;
mod validate;
mod watch;
mod watchdog;
mod why;
mod worker;
mod workers;
mod worktree;

use std::ffi::OsString;
use std::io::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::error::ErrorKind;
use clap::{Args, Command, CommandFactory, FromArgMatches, Parser, Subcommand, ValueEnum};

use crate::cli::deferred_args::Late;
use crate::run::failure::Failure;
use crate::view::stderr::talk;

/// Runs coding agents from workflow files, over plain directories, with no server.
#[derive(Parser)]
#[command(name = "orchestrate", version, propagate_version = true)]
#[command(disable_help_subcommand = true)]
#[command(after_help = "Exit codes: 0 completed, 1 failed, 2 bad usage or invalid workflow, \
    3 paused: a person is asked, 4 cancelled, 5 somebody else owns the run, 7 stored state is \
    damaged, 128+n stopped by signal n.")]
struct Cli {
    #[command(subcommand)]
    verb: Verb,
    #[command(flatten)]
    common: Common,
}

#[derive(Subcommand)]
enum Verb {
    /// Make a workspace: a workflow, prompts, settings, inboxes
    Init(Late<init::InitArgs>),
    /// Run a workflow from the beginning
    Run(Late<run::RunArgs>),
    /// Go on with a run that failed, waits for a person or was stopped
    Resume(Late<resume::ResumeArgs>),
    /// Run one step of a workflow alone
    RunStep(Late<run_step::RunStepArgs>),
    /// Run a workflow again whenever it or its prompts change
    Watch(Late<watch::WatchArgs>),
    /// Hand a workflow to the coordinators of the workspace
    Submit(Late<submit::SubmitArgs>),
    /// Drive the runs that are submitted, giving their steps to workers
    Coordinator(Late<coordinator::CoordinatorArgs>),
    /// Serve an agent's inbox: execute its tasks
    Worker(Late<worker::WorkerArgs>),
    /// Start a coordinator and a worker for each agent, here
    Up(Late<up::UpArgs>),
    /// Show runs, workers and inboxes, or one run and its steps
    #[command(visible_alias = "ls")]
    Status(Late<status::StatusArgs>),
    /// Show what is being executed, who is there, and what waits
    Ps(Late<ps::PsArgs>),
    /// Watch runs, workers and queues live; decide, cancel or retry
    Top(Late<top::TopArgs>),
    /// Show what steps and tasks print, also while they do
    Logs(Late<logs::LogsArgs>),
    /// Show everything that happened to a run, also while it does
    Events(Late<events::EventsArgs>),
    /// Say in one sentence why a run or a task is where it is
    Why(Late<why::WhyArgs>),
    /// Show what runs ask people, and what to type
    Pending(Late<pending::PendingArgs>),
    /// Say yes to what a run asks; if nobody drives it, it goes on here
    Approve(Late<decide::ApproveArgs>),
    /// Say no to what a run asks, and why
    Reject(Late<decide::RejectArgs>),
    /// End a run or a task now, with everything it started
    #[command(visible_alias = "stop")]
    Cancel(Late<cancel::CancelArgs>),
    /// Let a run that is over or stopped go on, also from a step
    Retry(Late<retry::RetryArgs>),
    /// Look into inboxes, put tasks back or take them out, pause agents
    #[command(subcommand)]
    Queue(Late<queue::QueueVerb>),
    /// Show who serves, or ask workers to end
    #[command(subcommand)]
    Workers(Late<workers::WorkersVerb>),
    /// Put tasks into an agent's inbox
    Enqueue(Late<enqueue::EnqueueArgs>),
    /// Print figures for a monitor: runs, queues, beats, tokens, costs
    Metrics(Late<metrics::MetricsArgs>),
    /// Check workflows without running them
    Validate(Late<validate::ValidateArgs>),
    /// Print JSON Schemas of workflows, settings and tasks, for editors
    Schema(Late<schema::SchemaArgs>),
    /// Draw a workflow, or where a run of it stands
    Graph(Late<graph::GraphArgs>),
    /// Write down all that there is to know of a run, as one HTML file
    Report(Late<report::ReportArgs>),
    /// Show the board, logs and questions in a browser, and act there
    Serve(Late<serve::ServeArgs>),
    /// Remove old runs, and old tasks that have ended
    Clean(Late<clean::CleanArgs>),
    /// Call a command file directly, or list those that there are
    #[command(subcommand)]
    Command(Late<command::CommandVerb>),
    /// Render a spell, or read what an agent's answer says about itself
    #[command(subcommand)]
    Spell(Late<spell::SpellVerb>),
    /// Show providers, or say whether one can be used
    #[command(subcommand)]
    Provider(Late<provider::ProviderVerb>),
    /// Worktrees of beads: make, look, merge, remove, recover
    #[command(subcommand)]
    Worktree(Late<worktree::WorktreeVerb>),
    /// See a team of agents at work, offline, in a scratch directory
    Demo(Late<demo::DemoArgs>),
    /// The fleet as systemd services: write units, remove them, look
    #[command(subcommand)]
    Service(Late<service::ServiceVerb>),
    /// Print what a shell needs to complete verbs, flags and names
    Completions(Late<completions::CompletionsArgs>),
    /// Say what may stand where somebody types
    #[command(hide = true)]
    Complete(Late<complete::CompleteArgs>),
    /// Explain a verb or a concept; write manual pages
    Help(Late<help::HelpArgs>),
    /// Find out whether this workspace is fit for a fleet
    Doctor(Late<doctor::DoctorArgs>),
    /// The second process of `doctor --volume`
    #[command(hide = true)]
    DoctorPeer(Late<doctor::PeerArgs>),
    /// Check that tasks, runs and journals are whole, and mend them
    Fsck(Late<fsck::FsckArgs>),
    /// Gather what explains trouble into one archive, without secrets
    DebugBundle(Late<debug_bundle::DebugBundleArgs>),
    /// Give up powers and become another program, as steps in a sandbox do
    #[command(hide = true)]
    Confine(Late<confine::ConfineArgs>),
    /// End what a process that was killed had started
    #[command(hide = true, name = crate::exec::END_CHILDREN)]
    EndChildren(Late<end_children::EndChildrenArgs>),
    /// The offline provider: answers a prompt from a script
    #[command(hide = true)]
    Offline(Late<crate::offline::Options>),
}

/// Flags that every verb takes.
#[derive(Args, Clone, Debug)]
pub(crate) struct Common {
    /// Keep debug records and logs of every step
    #[arg(long, global = true)]
    debug: bool,
    /// Put a trace id on every line of the run's log
    #[arg(long, global = true)]
    trace: bool,
    /// Tell only what is wrong
    #[arg(short, long, global = true, conflicts_with = "verbose")]
    quiet: bool,
    /// Tell more
    #[arg(short, long, global = true)]
    verbose: bool,
    /// Write the outcome as JSON on standard output
    #[arg(long, global = true)]
    json: bool,
    /// The least level of log lines that are shown and kept
    #[arg(long, global = true, value_enum, value_name = "LEVEL")]
    log_level: Option<LogLevel>,
    /// Where runs are kept, instead of .orchestrate/runs
    #[arg(long, global = true, value_name = "PATH")]
    state_dir: Option<PathBuf>,
    /// A settings file that wins over all others
    #[arg(long, global = true, value_name = "FILE")]
    config: Option<PathBuf>,
    /// When to use colours in what a run tells, and in `top`
    #[arg(long, global = true, value_enum, value_name = "WHEN", default_value = "auto")]
    color: Colour,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum LogLevel {
    Debug,
    Info,
    Warn,
    Error,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Colour {
    Auto,
    Always,
    Never,
}

/// Runs the program `orchestrate`.
pub fn main() -> ExitCode {
    start(std::env::args_os().collect())
}

fn start(args: Vec<OsString>) -> ExitCode {
    let code = obey(&args);
    crate::exec::take_leave();
    code
}

fn obey(args: &[OsString]) -> ExitCode {
    match parse(args) {
        Ok(cli) => run_cli(cli),
        // Without groups, the list of verbs is too long to read.
        Err(error) if error.kind() == ErrorKind::DisplayHelp && asks_for_all(args) => {
            ended(output::put(&help::root()).map(|()| 0), false)
        }
        Err(_) if args.len() == 1 => {
            talk(help::root());
            ExitCode::from(2)
        }
        Err(error) => {
            if error.use_stderr() && args.iter().any(|arg| arg == "--json") {
                failure::print(&misused(&error), true);
                return ExitCode::from(2);
            }
            if error.use_stderr() {
                error.exit()
            }
            // The user asked for help or for the version.
            let written = error.print().and_then(|()| std::io::stdout().flush());
            ended(output::written(written).map(|_| 0), false)
        }
    }
}

fn parse(args: &[OsString]) -> Result<Cli, clap::Error> {
    let verb = args.get(1).and_then(|arg| arg.to_str());
    let mut command = verb.and_then(alone).unwrap_or_else(Cli::command);
    let mut args = args.to_vec();
    let is_flag = |arg: &OsString| arg.to_str().is_some_and(|arg| arg.starts_with('-'));
    let at = args.iter().skip(1).take_while(|arg| is_flag(arg)).count() + 1;
    if args.get(at).is_some_and(|arg| LISTS.iter().any(|verb| arg == verb))
        && names_no_verb(&args[at + 1..])
    {
        args.insert(at + 1, "ls".into());
    }
    let mut matches = command.try_get_matches_from_mut(args)?;
    Cli::from_arg_matches_mut(&mut matches).map_err(|error| error.format(&mut command))
}

/// Commands with subcommands whose default is `ls`.
const LISTS: [&str; 5] = ["queue", "workers", "provider", "worktree", "command"];

/// Returns true if all arguments are flags and none of them asks for help.
fn names_no_verb(args: &[OsString]) -> bool {
    let is_flag = |arg: &OsString| arg.to_str().is_some_and(|arg| arg.starts_with('-'));
    let help = ["-h", "--help", "-V", "--version"];
    args.iter().all(is_flag) && !args.iter().any(|arg| help.iter().any(|help| arg == help))
}

/// Returns the command line with only one of its verbs. clap copies the common flags into each
/// verb, used or not, which is a third of the memory that a start touches.
fn alone(verb: &str) -> Option<Command> {
    let verb = Verb::augment_subcommands(Command::new("verbs")).find_subcommand(verb)?.clone();
    // Common flags are listed after the verb's own flags.
    let root = Common::augment_args(Command::new("orchestrate").next_display_order(100));
    let root = root.version(env!("CARGO_PKG_VERSION")).propagate_version(true);
    Some(root.disable_help_subcommand(true).subcommand_required(true).subcommand(verb))
}

/// Returns true if the user asks for help without a verb.
fn asks_for_all(args: &[OsString]) -> bool {
    args.get(1).is_some_and(|arg| arg == "--help" || arg == "-h")
}

/// Converts a usage error of clap to a failure, for `--json`.
fn misused(error: &clap::Error) -> Failure {
    let text = error.render().to_string();
    let mut lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
    let message = lines.next().unwrap_or_default().trim_start_matches("error: ").to_owned();
    // clap lists missing arguments on lines of their own, before the usage.
    let more = lines.take_while(|line| !line.starts_with("Usage:"));
    let (tips, more): (Vec<_>, Vec<_>) = more.partition(|line| line.starts_with("tip: "));
    let message = [&[message.as_str()], more.as_slice()].concat().join(" ");
    let tip = tips.first().map(|tip| tip.trim_start_matches("tip: "));
    Failure::invalid(message)
        .hint(tip.unwrap_or("`orchestrate help` shows every verb and its flags"))
}

fn run_cli(cli: Cli) -> ExitCode {
    watchdog::start(&cli.verb, &cli.common);
    let outcome = match &cli.verb {
        Verb::Offline(options) => return offline::main(options),
        Verb::Init(args) => init::main(args, &cli.common),
        Verb::Confine(args) => return confine::main(args),
        Verb::EndChildren(args) => return end_children::main(args),
        Verb::Run(args) => run::main(args, &cli.common),
        Verb::Resume(args) => resume::main(args, &cli.common),
        Verb::RunStep(args) => run_step::main(args, &cli.common),
        Verb::Watch(args) => watch::main(args, &cli.common),
        Verb::Submit(args) => submit::main(args, &cli.common),
        Verb::Coordinator(args) => coordinator::main(args, &cli.common),
        Verb::Worker(args) => worker::main(args, &cli.common),
        Verb::Up(args) => up::main(args, &cli.common),
        Verb::Status(args) => status::main(args, &cli.common),
        Verb::Ps(args) => ps::main(args, &cli.common),
        Verb::Top(args) => top::main(args, &cli.common),
        Verb::Logs(args) => logs::main(args, &cli.common),
        Verb::Events(args) => events::main(args, &cli.common),
        Verb::Metrics(args) => metrics::main(args, &cli.common),
        Verb::Why(args) => why::main(args, &cli.common),
        Verb::Pending(args) => pending::main(args, &cli.common),
        Verb::Approve(args) => decide::approve(args, &cli.common),
        Verb::Reject(args) => decide::reject(args, &cli.common),
        Verb::Cancel(args) => cancel::main(args, &cli.common),
        Verb::Retry(args) => retry::main(args, &cli.common),
        Verb::Queue(verb) => queue::main(verb, &cli.common),
        Verb::Workers(verb) => workers::main(verb, &cli.common),
        Verb::Enqueue(args) => enqueue::main(args, &cli.common),
        Verb::Validate(args) => validate::main(args, &cli.common),
        Verb::Schema(args) => schema::main(args, &cli.common),
        Verb::Graph(args) => graph::main(args, &cli.common),
        Verb::Report(args) => report::main(args, &cli.common),
        Verb::Serve(args) => serve::main(args, &cli.common),
        Verb::Clean(args) => clean::main(args, &cli.common),
        Verb::Command(verb) => command::main(verb, &cli.common),
        Verb::Spell(verb) => spell::main(verb, &cli.common),
        Verb::Provider(verb) => provider::main(verb, &cli.common),
        Verb::Worktree(verb) => worktree::main(verb, &cli.common),
        Verb::Fsck(args) => fsck::main(args, &cli.common),
        Verb::DebugBundle(args) => debug_bundle::main(args, &cli.common),
        Verb::Demo(args) => demo::main(args, &cli.common),
        Verb::Service(verb) => service::main(verb, &cli.common),
        Verb::Completions(args) => completions::main(args, &cli.common),
        Verb::Complete(args) => complete::main(args, &cli.common),
        Verb::Help(args) => help::main(args, &cli.common),
        Verb::Doctor(args) => doctor::main(args, &cli.common),
        Verb::DoctorPeer(args) => doctor::peer(args),
    };
    ended(outcome, cli.common.json)
}

/// Reports a failure. Returns the exit code.
fn ended(outcome: Result<u8, Failure>, json: bool) -> ExitCode {
    match outcome {
        Ok(code) => ExitCode::from(code),
        Err(failure) => {
            failure::print(&failure, json);
            ExitCode::from(failure.exit_code())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is said to a command line, by the program with all its verbs and with one.
    fn said(mut command: Command, args: &[&str]) -> String {
        match command.try_get_matches_from_mut(args) {
            Ok(matches) => format!("{:?}", matches.subcommand()),
            Err(error) => error.render().to_string(),
        }
    }

    #[test]
    fn a_verb_alone_is_the_verb_among_all() {
        for verb in Cli::command().get_subcommands() {
            let name = verb.get_name();
            for more in [&["--help"][..], &["-h"], &["--version"], &["--no-such"], &["--json"]] {
                let args = [&["orchestrate", name], more].concat();
                let alone = alone(name).expect("a verb of the program");
                assert_eq!(said(alone, &args), said(Cli::command(), &args), "{args:?}");
            }
        }
        assert!(alone("no-such-verb").is_none());
    }
}
