//! Commands that must succeed in a merged tree before the base moves to it.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::{Block, TreeError};
use crate::exec::{self, Capture, How, Mask, Mode, Order, Stop, Sweep};
use crate::git::NOT_INHERITED;

/// Checks and their execution settings.
#[derive(Clone, Copy, Default)]
pub(crate) struct Checks<'a> {
    /// Shell commands, in order.
    pub commands: &'a [String],
    /// Timeout of each command.
    pub limit: Option<Duration>,
    /// Additional environment variables, and the variables that the commands do not inherit.
    pub env: &'a [(String, OsString)],
    pub hidden: &'a [String],
    /// Redacts secrets in the output.
    pub mask: Option<&'a Mask>,
    /// Log files for stdout and stderr.
    pub logs: Option<&'a [PathBuf; 2]>,
}

/// Maximum number of output lines to quote in a message.
const SAID: usize = 3;

impl Checks<'_> {
    /// Runs the checks in a directory, up to the first failure.
    pub(super) fn run(
        &self,
        cwd: &Path,
        mark: &str,
        stop: &Stop,
    ) -> Result<Option<Block>, TreeError> {
        for (index, command) in self.commands.iter().enumerate() {
            if let Some(block) = self.run_one(index, command, cwd, mark, stop)? {
                return Ok(Some(block));
            }
        }
        Ok(None)
    }

    fn run_one(
        &self,
        index: usize,
        command: &str,
        cwd: &Path,
        mark: &str,
        stop: &Stop,
    ) -> Result<Option<Block>, TreeError> {
        let argv = ["sh", "-c", command].map(str::to_owned);
        let hidden = self.hidden.iter().map(String::as_str);
        let env_remove: Vec<&str> = NOT_INHERITED.into_iter().chain(hidden).collect();
        let order = Order {
            env: self.env,
            env_remove: &env_remove,
            timeout: self.limit,
            sweep: Sweep::Always,
            ..Order::new(&argv, cwd, mark)
        };
        let title = format!("$ {command}");
        let (mut out, mut err) = (self.capture(index, 0), self.capture(index, 1));
        if self.logs.is_some() {
            out.push(format!("{title}\n").as_bytes());
        }
        let failed = |code: i32, said: String, stdout: Vec<String>, stderr: Vec<String>| {
            let command = command.to_owned();
            Ok(Some(Block::Check { command, code, said, stdout, stderr }))
        };
        let ended = match exec::run(&order, &mut out, &mut err, stop) {
            Ok(ended) => ended,
            Err(error) => {
                return failed(error.exit_code(), error.to_string(), Vec::new(), Vec::new());
            }
        };
        let code = match ended.how {
            How::Stopped => return Err(TreeError::Stopped),
            how => how.exit_code(),
        };
        let tail = |capture: Capture| capture.finish().map(|captured| captured.tail);
        // A log that cannot be written has no influence on the merge.
        let (mut out, err) = (tail(out).unwrap_or_default(), tail(err).unwrap_or_default());
        out.retain(|line| title.lines().next() != Some(line));
        match ended.how {
            _ if code == 0 => Ok(None),
            How::TimedOut => {
                let limit = self.limit.unwrap_or_default().as_secs_f64();
                failed(code, format!("it did not end within {limit} s"), out, err)
            }
            _ => {
                let said = said(if err.is_empty() { &out } else { &err });
                failed(code, said, out, err)
            }
        }
    }

    /// Returns the capture of a check's output. Every check after the first appends to the same
    /// logs.
    fn capture(&self, index: usize, stream: usize) -> Capture {
        let capture = Capture::new(Mode::Tail, self.mask.cloned().unwrap_or_default());
        match self.logs.map(|logs| logs[stream].clone()) {
            None => capture,
            Some(log) if index == 0 => capture.log(log),
            Some(log) => capture.log_on(log),
        }
    }
}

fn said(lines: &[String]) -> String {
    match &lines[lines.len().saturating_sub(SAID)..] {
        [] => "it printed nothing".into(),
        last => last.join("; "),
    }
}
