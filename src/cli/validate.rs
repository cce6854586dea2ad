//! `orchestrate validate`: reports errors and warnings in workflows.

use std::path::PathBuf;

use serde_json::{Value, json};

use super::failure::{self, problem_json};
use super::invocation::Invocation;
use super::output::{put_json, put_line};
use super::{Common, here};
use crate::base::text::{sanitize, single_line};
use crate::run::failure::Failure;
use crate::run::{load, workflow_file};
use crate::view::stderr::talk;
use crate::workflow::{Problem, lint};

#[derive(clap::Args, Clone, Debug)]
pub(super) struct ValidateArgs {
    /// The workflow files
    #[arg(value_name = "WORKFLOW", required = true)]
    pub workflows: Vec<PathBuf>,
    /// Take warnings for errors
    #[arg(long)]
    pub strict: bool,
    /// How problems are told; `github` is for the annotations of a code host
    #[arg(long, value_enum, value_name = "FORMAT", default_value = "text")]
    pub format: Format,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum Format {
    /// The line, and what is wrong in it
    Text,
    /// One command for each problem, which puts it beside the line in a review
    Github,
}

pub(super) fn main(args: &ValidateArgs, common: &Common) -> Result<u8, Failure> {
    let invocation = Invocation::read(common)?;
    let workspace = invocation.open_workspace()?;
    let mut code = 0;
    let mut found = Vec::new();
    let mut between = "";
    for path in &args.workflows {
        let file = path.display().to_string();
        let (file, text) = match workflow_file::find_workflow(&invocation, path) {
            Ok(found) => found,
            Err(message) => {
                let problem = Problem::error(message);
                let problem = match workflow_file::near_workflow(&invocation, path) {
                    Some(near) => problem.hint(format!("did you mean `{near}`?")),
                    None => problem,
                };
                tell(&invocation, args.format, &file, "", &[problem], &mut found, &mut between)?;
                code = 2;
                continue;
            }
        };
        let checked = load::check(&invocation, &workspace, &file, &text);
        let incurable = checked.incurable(&text);
        let load::CheckedWorkflow { document, plan, errors, warnings, .. } = checked;
        let read = document.as_ref().zip(plan.as_ref());
        let lints = read.map(|(document, plan)| {
            lint::look(&text, document, plan, invocation.config.max_visits)
        });
        let missing = read.map(|(document, plan)| here::missing(&invocation, document, plan));
        let told = errors.into_iter().chain(incurable).chain(warnings);
        let told = told.chain(missing.unwrap_or_default());
        let problems = told.chain(lints.unwrap_or_default()).collect();
        let problems = lint::without_allowed(&text, problems);
        let wrong = |problem: &Problem| args.strict || problem.is_error();
        let valid = !problems.iter().any(wrong);
        tell(&invocation, args.format, &file, &text, &problems, &mut found, &mut between)?;
        if !valid {
            code = 2;
        } else if !common.json && !common.quiet && args.format == Format::Text {
            put_line(format_args!("{}: valid", single_line(&file)))?;
        }
    }
    if common.json {
        put_json("validate/v1", json!({ "valid": code == 0, "problems": found }))?;
    }
    Ok(code)
}

fn tell(
    invocation: &Invocation,
    format: Format,
    file: &str,
    text: &str,
    problems: &[Problem],
    found: &mut Vec<Value>,
    between: &mut &str,
) -> Result<(), Failure> {
    if invocation.common.json {
        found.extend(problems.iter().map(|problem| problem_json(file, problem)));
        return Ok(());
    }
    if format == Format::Github {
        return problems.iter().try_for_each(|problem| put_line(annotation(file, problem)));
    }
    if !problems.is_empty() {
        talk(format_args!("{between}{}", failure::problems_text(problems, file, text)));
        *between = "\n";
    }
    Ok(())
}

/// Formats a problem as a GitHub workflow command. Compatible code hosts accept it too.
fn annotation(file: &str, problem: &Problem) -> String {
    let file = problem.elsewhere.as_ref().map_or(file, |(file, _)| file);
    let kind = if problem.is_error() { "error" } else { "warning" };
    let data = |text: &str| sanitize(text).replace('%', "%25").replace('\n', "%0A");
    let property = |text: &str| data(text).replace(':', "%3A").replace(',', "%2C");
    let mut line = format!("::{kind} file={}", property(file));
    if let Some(place) = problem.place {
        let end = place.column + place.len.max(1) - 1;
        line += &format!(",line={},col={},endColumn={end}", place.line, place.column);
    }
    if let Some(id) = problem.lint {
        line += &format!(",title={}", property(id));
    }
    let hint = problem.hint.as_ref().map(|hint| format!("\nhint: {hint}")).unwrap_or_default();
    line + "::" + &data(&format!("{}{hint}", problem.message))
}
