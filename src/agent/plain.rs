//! A CLI whose standard output is the answer.

use super::{Adapter, Answer, End, Outcome, Turn, Veil, Verdict};

#[derive(Default)]
pub(super) struct Plain {
    answer: Answer,
    begun: bool,
}

impl Adapter for Plain {
    fn line(&mut self, line: &str, veil: &Veil) -> Option<Vec<Turn>> {
        if std::mem::replace(&mut self.begun, true) {
            self.answer.add("\n");
        }
        self.answer.add(line);
        Some(veil.said(line).into_iter().collect())
    }

    fn session(&self) -> Option<&str> {
        None
    }

    fn finish(mut self: Box<Self>, end: &End, _: &Veil) -> Outcome {
        let text = self.answer.text.trim_end_matches(['\n', '\r']).len();
        self.answer.text.truncate(text);
        let verdict = match (end.went_well(), end.exit_code) {
            (true, _) => Verdict::Answered,
            (false, Some(code)) if code != 0 && !end.timed_out => {
                Verdict::Fail { reason: end.last_words().unwrap_or_else(|| end.how()) }
            }
            _ => Verdict::Stopped { reason: end.how() },
        };
        Outcome::new(verdict).answering(self.answer)
    }
}
