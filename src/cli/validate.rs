//! `orchestrate validate`: reports errors and warnings in workflows.

use std::path::PathBuf;

use serde_json::{Value, json};

use super::common::{self, Surroundings};
use super::failure::problem_json;
use super::load::{Looked, look_over};
use super::show::{put_json, put_line};
use super::{Common, Failure, here};
use crate::base::text::{sanitize, single_line};
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
    let around = Surroundings::look(common)?;
    let workspace = common::open_workspace(&around)?;
    let mut code = 0;
    let mut found = Vec::new();
    let mut between = "";
    for path in &args.workflows {
        let file = path.display().to_string();
        let (file, text) = match common::find_workflow(&around, path) {
            Ok(found) => found,
            Err(message) => {
                let problem = Problem::error(message);
                let problem = match common::near_workflow(&around, path) {
                    Some(near) => problem.hint(format!("did you mean `{near}`?")),
                    None => problem,
                };
                tell(&around, args.format, &file, "", &[problem], &mut found, &mut between)?;
                code = 2;
                continue;
            }
        };
        let looked = look_over(&around, &workspace, &file, &text);
        let incurable = looked.incurable(&text);
        let Looked { document, plan, errors, warnings, .. } = looked;
        let read = document.as_ref().zip(plan.as_ref());
        let lints = read
            .map(|(document, plan)| lint::look(&text, document, plan, around.config.max_visits));
        let missing = read.map(|(document, plan)| here::missing(&around, document, plan));
        let told = errors.into_iter().chain(incurable).chain(warnings);
        let told = told.chain(missing.unwrap_or_default());
        let problems = told.chain(lints.unwrap_or_default()).collect();
        let problems = lint::without_allowed(&text, problems);
        let wrong = |problem: &Problem| args.strict || problem.is_error();
        let valid = !problems.iter().any(wrong);
        tell(&around, args.format, &file, &text, &problems, &mut found, &mut between)?;
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
    around: &Surroundings,
    format: Format,
    file: &str,
    text: &str,
    problems: &[Problem],
    found: &mut Vec<Value>,
    between: &mut &str,
) -> Result<(), Failure> {
    if around.common.json {
        found.extend(problems.iter().map(|problem| problem_json(file, problem)));
        return Ok(());
    }
    if format == Format::Github {
        return problems.iter().try_for_each(|problem| put_line(annotation(file, problem)));
    }
    if !problems.is_empty() {
        talk(format_args!("{between}{}", common::show(problems, file, text)));
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
