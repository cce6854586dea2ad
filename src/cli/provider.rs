//! `orchestrate provider`: lists providers, tests one, or unparks one.

use std::thread;

use serde::Serialize;

use super::invocation::Invocation;
use super::output::{put, put_json, table};
use super::{Common, signals};
use crate::attempt::parking::{self, Cause, ParkedView};
use crate::attempt::provider_check::{self, Known, Program};
use crate::base::text::sanitize;
use crate::exec::{self, Stop};
use crate::run::failure::Failure;
use crate::workflow::Configured;
use crate::workflow::plan::Provider;
use crate::yaml::problem::nearest;

#[derive(clap::Subcommand, Clone, Debug)]
pub(super) enum ProviderVerb {
    /// Show the providers of the settings: how they are read, their programs and versions
    Ls,
    /// Say whether a provider can be used; asks it something only on a server of this machine
    #[command(after_help = "Exit codes: 0 nothing is wrong with what was checked, 1 something is.")]
    Test(TestArgs),
    /// Let a provider be asked again that is parked, or suspended on a machine
    #[command(after_help = "Exit codes: 0 it may be asked, 2 there is no such provider.")]
    Resume(TestArgs),
}

#[derive(clap::Args, Clone, Debug)]
pub(super) struct TestArgs {
    /// The provider, as the settings call it
    #[arg(value_name = "PROVIDER")]
    pub name: String,
}

/// A provider, as printed.
#[derive(Serialize)]
struct ProviderView {
    name: String,
    adapter: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    program: Option<String>,
    /// Path of the program.
    #[serde(skip_serializing_if = "Option::is_none")]
    file: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    version: Option<String>,
    /// True if this is the tested version: the one whose output was recorded.
    #[serde(skip_serializing_if = "Option::is_none")]
    tried: Option<bool>,
    /// True if the version is older than the tested one.
    older: bool,
    #[serde(skip)]
    known: Option<Known>,
    #[serde(skip_serializing_if = "Option::is_none")]
    problem: Option<String>,
    /// Account whose limits apply to the provider.
    account: String,
    /// Reasons why the provider is not asked now, on all machines or on some.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    parked: Vec<ParkedView>,
}

/// Result of a test.
#[derive(Serialize)]
struct TestView {
    #[serde(flatten)]
    provider: ProviderView,
    well: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    answer: Option<String>,
    not_checked: Vec<String>,
}

pub(super) fn main(verb: &ProviderVerb, common: &Common) -> Result<u8, Failure> {
    let invocation = Invocation::read(common)?;
    let signals = signals::listen()?;
    exec::become_subreaper()
        .map_err(|error| Failure::failed(format!("cannot look after processes: {error}")))?;
    match verb {
        ProviderVerb::Ls => ls(&invocation, &signals.stop),
        ProviderVerb::Test(args) => test(args, &invocation, &signals.stop),
        ProviderVerb::Resume(args) => resume(args, &invocation),
    }
}

fn view(invocation: &Invocation, name: &str, provider: &Provider, stop: &Stop) -> ProviderView {
    let account = provider.account.as_deref().unwrap_or(name);
    let mut view = ProviderView {
        name: name.to_owned(),
        adapter: provider.adapter.name(),
        program: provider.program().map(str::to_owned),
        file: None,
        version: None,
        tried: None,
        older: false,
        known: None,
        problem: None,
        parked: parked(invocation, name, account),
        account: account.to_owned(),
    };
    match provider_check::find(provider, &invocation.environment, &invocation.workspace) {
        Program::BuiltIn => view.version = Some(env!("CARGO_PKG_VERSION").to_owned()),
        Program::Unknown => {}
        Program::Missing(problem) => {
            view.problem = Some(format!("{problem}{}", provider.adapter.and_install()));
        }
        Program::Found(file) => {
            match provider_check::version(&file, &invocation.workspace, stop) {
                Ok(version) => {
                    view.known = Known::of(provider.adapter, &version);
                    view.tried = view.known.map(|known| matches!(known, Known::Tried { .. }));
                    view.older = matches!(view.known, Some(Known::Older { .. }));
                    view.version = Some(version);
                }
                Err(problem) => view.problem = Some(problem),
            }
            view.file = Some(file.display().to_string());
        }
    }
    view
}

fn ls(invocation: &Invocation, stop: &Stop) -> Result<u8, Failure> {
    // In parallel: some programs take seconds to print their version.
    let views: Vec<ProviderView> = thread::scope(|scope| {
        let all = invocation.config.providers().iter();
        let looking: Vec<_> = all
            .map(|(name, provider)| scope.spawn(move || view(invocation, name, provider, stop)))
            .collect();
        looking.into_iter().filter_map(|look| look.join().ok()).collect()
    });
    if invocation.common.json {
        put_json("providers/v1", serde_json::json!({ "providers": views }))?;
        return Ok(0);
    }
    let rows: Vec<Vec<String>> = views.iter().map(row).collect();
    put(&sanitize(&table(&rows)))?;
    Ok(0)
}

fn row(view: &ProviderView) -> Vec<String> {
    let ProviderView { name, adapter, program, file, version, known, .. } = view;
    let place = match (file, program.as_deref()) {
        (Some(file), _) => file.clone(),
        (None, Some("orchestrate")) => "built in".to_owned(),
        (None, program) => program.unwrap_or("depends on the step").to_owned(),
    };
    let version = match (version, known) {
        (None, _) => String::new(),
        (Some(version), None | Some(Known::Tried { .. })) => version.clone(),
        (Some(version), Some(known)) => format!("{version} ({})", known.words()),
    };
    let mut notes: Vec<String> = view.problem.iter().cloned().collect();
    notes.extend(view.parked.iter().map(ParkedView::sentence));
    vec![name.clone(), adapter.to_string(), place, version, notes.join("; ")]
}

fn parked(invocation: &Invocation, name: &str, account: &str) -> Vec<ParkedView> {
    let mut all = parking::look(&invocation.workspace).unwrap_or_default();
    all.retain(|parked| match parked.cause {
        Cause::Machine => parked.is_whole_machine() || parked.provider == name,
        _ => parked.account == account,
    });
    all
}

/// Removes all reasons for which a provider is not asked. Also accepts the name of an account: a
/// workflow may have providers that the settings do not know.
fn resume(args: &TestArgs, invocation: &Invocation) -> Result<u8, Failure> {
    let provider = invocation.config.providers().get(&args.name);
    let account = provider.and_then(|provider| provider.account.clone());
    let account = account.unwrap_or_else(|| args.name.clone());
    let lifted =
        parking::lift(&invocation.workspace, &[&account, &args.name]).map_err(|error| {
            Failure::failed(format!("cannot let `{account}` be asked again: {error}"))
                .hint("the workspace must be writable; `orchestrate doctor` tells more")
        })?;
    if !lifted && provider.is_none() {
        return Err(unknown(args, invocation));
    }
    if invocation.common.json {
        let body = serde_json::json!({ "account": account, "was_parked": lifted });
        put_json("provider-resume/v1", body)?;
    } else if lifted {
        put(&format!("`{account}` may be asked again\n"))?;
    } else {
        invocation.note(format!("`{account}` was not parked"));
    }
    Ok(0)
}

fn unknown(args: &TestArgs, invocation: &Invocation) -> Failure {
    let all = invocation.config.providers();
    let failure = Failure::invalid(format!("there is no provider `{}`", args.name));
    failure.hint(match nearest(&args.name, all.keys().map(String::as_str)) {
        Some(near) => format!("did you mean `{near}`?"),
        None => "`orchestrate provider ls` shows those there are".to_owned(),
    })
}

fn test(args: &TestArgs, invocation: &Invocation, stop: &Stop) -> Result<u8, Failure> {
    let all = invocation.config.providers();
    let Some(provider) = all.get(&args.name) else { return Err(unknown(args, invocation)) };
    let mut found = TestView {
        provider: view(invocation, &args.name, provider, stop),
        well: true,
        answer: None,
        not_checked: Vec::new(),
    };
    found.well = found.provider.problem.is_none();
    if found.well {
        try_out(invocation, &args.name, provider, &mut found, stop);
    }
    match invocation.common.json {
        true => put_json("provider-test/v1", &found)?,
        false => put(&sanitize(&told(&found, &provider.adapter.and_install())))?,
    }
    Ok(u8::from(!found.well))
}

/// Sends the provider a prompt, if that costs nothing.
fn try_out(
    invocation: &Invocation,
    name: &str,
    provider: &Provider,
    found: &mut TestView,
    stop: &Stop,
) {
    let costs_nothing = provider.program() == Some("orchestrate");
    let server = provider_check::own_server(provider.adapter, &invocation.environment);
    let Some(server) = server.or_else(|| costs_nothing.then(String::new)) else {
        found.not_checked.push("whether it is logged in, and what its limits are".to_owned());
        found.not_checked.push(match provider_check::base_url_variables(provider.adapter).last() {
            Some(variable) => format!(
                "whether it answers, which may cost money: asked is only a server of this \
                 machine, by `{variable}`"
            ),
            None => "whether it answers, which may cost money".to_owned(),
        });
        return;
    };
    let record = provider_check::in_scratch(&invocation.environment, |dir| {
        provider_check::try_out(
            name,
            &invocation.config,
            &invocation.environment,
            &server,
            dir,
            stop,
        )
    });
    match record {
        Ok(Some(record)) => match provider_check::judge(provider.adapter, &record) {
            Ok(answer) => found.answer = Some(answer),
            Err(problem) => {
                found.well = false;
                found.provider.problem = Some(problem);
            }
        },
        Ok(None) => found.not_checked.push("whether it answers: it was stopped".to_owned()),
        Err(problem) => {
            found.not_checked.push(format!("whether it answers: {problem}"));
        }
    }
}

fn told(found: &TestView, and_install: &str) -> String {
    let TestView { provider, answer, not_checked, .. } = found;
    let mut lines = Vec::new();
    match (&provider.file, provider.program.as_deref()) {
        (Some(file), _) => lines.push(format!("program: {file}")),
        (None, Some("orchestrate")) => lines.push("program: built in".to_owned()),
        (None, _) => {}
    }
    if let Some(version) = &provider.version {
        let known = provider.known.map(|known| format!(", {}", known.words())).unwrap_or_default();
        let cure = if provider.older { and_install } else { "" };
        lines.push(format!("version: {version}{known}{cure}"));
    }
    lines.push(format!("read as: {}", provider.adapter));
    lines.extend(answer.as_ref().map(|answer| format!("answers: {answer}")));
    lines.extend(provider.parked.iter().map(|parked| format!("parked: {}", parking::told(parked))));
    lines.extend(provider.problem.as_ref().map(|problem| format!("problem: {problem}")));
    lines.extend(not_checked.iter().map(|what| format!("not checked: {what}")));
    lines.iter().map(|line| format!("{line}\n")).collect()
}
