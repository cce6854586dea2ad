//! `orchestrate validate`: what is wrong with workflows, and what is doubtful.

use std::path::PathBuf;

use serde_json::{Value, json};

use super::common::{self, Surroundings};
use super::failure::problem_json;
use super::{Common, Failure, request};
use crate::fleet::open::compile_in;
use crate::fleet::spellbook;
use crate::workflow::Problem;

#[derive(clap::Args, Clone, Debug)]
pub struct ValidateArgs {
    /// The workflow files
    #[arg(value_name = "WORKFLOW", required = true)]
    pub workflows: Vec<PathBuf>,
    /// Take warnings for errors
    #[arg(long)]
    pub strict: bool,
}

pub fn main(args: &ValidateArgs, common: &Common) -> Result<u8, Failure> {
    let around = Surroundings::look(common)?;
    let workspace = common::open_workspace(&around)?;
    let mut code = 0;
    let mut found = Vec::new();
    for path in &args.workflows {
        let file = path.display().to_string();
        let (file, text) = match common::find_workflow(&around, path) {
            Ok(found) => found,
            Err(message) => {
                tell(&around, &file, "", &[Problem::error(message)], &mut found);
                code = 2;
                continue;
            }
        };
        let problems = match compile_in(&workspace, &around.config, &text) {
            Ok((plan, warnings)) => {
                let read = |path: &str| workspace.read_text(path, around.config.input_bytes);
                let lost = spellbook::gather(&plan, &read).err().unwrap_or_default();
                let (parts, missing) = request::look_for(&around, &file, &plan);
                let doubtful = request::doubtful(&around, &plan, &parts);
                // Where it is run they may be there: at home, for one.
                let missing = missing.into_iter().map(Problem::warning);
                lost.into_iter().chain(warnings).chain(doubtful).chain(missing).collect()
            }
            Err(problems) => problems,
        };
        let wrong = |problem: &Problem| args.strict || problem.is_error();
        let valid = !problems.iter().any(wrong);
        tell(&around, &file, &text, &problems, &mut found);
        if !valid {
            code = 2;
        } else if !common.json && !common.quiet {
            println!("{file}: valid");
        }
    }
    if common.json {
        println!("{}", json!({ "schema": "validate/v1", "valid": code == 0, "problems": found }));
    }
    Ok(code)
}

fn tell(
    around: &Surroundings,
    file: &str,
    text: &str,
    problems: &[Problem],
    found: &mut Vec<Value>,
) {
    if !around.common.json {
        if !problems.is_empty() {
            eprintln!("{}", common::show(problems, file, text));
        }
        return;
    }
    for problem in problems {
        found.push(problem_json(file, problem));
    }
}
