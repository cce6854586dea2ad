//! Usage of providers: of a step over all its attempts, and of a run.

use serde::Serialize;

use crate::agent::{Number, Usage};
use crate::engine::Record;
use crate::engine::record::Spent;
use crate::engine::run::Body;

/// Usage of a run. An absent value is unknown.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(crate) struct RunSpent {
    #[serde(flatten)]
    pub usage: Usage,
    /// Number of steps that asked a provider; each item of a loop counts.
    pub answers: usize,
    /// Numbers of those steps with incomplete costs or tokens: the sums lack them.
    pub cost_unknown: usize,
    pub tokens_unknown: usize,
}

/// Returns the usage of a step over all its attempts.
pub(crate) fn of_step(record: &Record) -> Option<Spent> {
    let usage = record.spent()?;
    let last = record.usage.as_deref().cloned().unwrap_or_default();
    Some(Spent { usage, ..last })
}

/// Returns the usage of a run's steps; `None` if none has asked a provider.
pub(super) fn of_run(body: &Body) -> Option<RunSpent> {
    let mut sum = RunSpent::default();
    add(body, &mut sum);
    (sum.answers > 0).then_some(sum)
}

fn add(body: &Body, sum: &mut RunSpent) {
    for slot in &body.slots {
        if let Some(usage) = slot.record.as_deref().and_then(Record::spent) {
            sum.add(&usage);
        }
        let items = slot.each.iter().flat_map(|each| &each.iterations);
        items.for_each(|item| add(&item.body, sum));
    }
}

/// Describes the known usage in a few words: `1.2k tokens in, 45 out, at least $0.0120`.
pub(crate) fn words(usage: &Usage) -> String {
    let (read, written) = (tokens(usage, Number::InputTokens), tokens(usage, Number::OutputTokens));
    let words = match (usage.input_tokens, usage.output_tokens) {
        (None, None) => "tokens unknown".to_owned(),
        _ => format!("{read} tokens in, {written} out"),
    };
    let cost = money(usage).unwrap_or_else(|| "cost unknown".into());
    format!("{words}, {cost}")
}

/// Returns the known cost: `at least $0.0120`.
pub(crate) fn money(usage: &Usage) -> Option<String> {
    usage.cost_usd.map(|cost| at_least(usage, Number::CostUsd, format!("${cost:.4}")))
}

fn tokens(usage: &Usage, number: Number) -> String {
    let count = match number {
        Number::InputTokens => usage.input_tokens,
        Number::OutputTokens => usage.output_tokens,
        _ => None,
    };
    count.map_or("unknown".to_owned(), |count| at_least(usage, number, thousands(count)))
}

/// Returns `known` unchanged if the number is complete; else prefixes "at least".
pub(crate) fn at_least(usage: &Usage, number: Number, known: String) -> String {
    if usage.knows(number) { known } else { format!("at least {known}") }
}

fn thousands(count: u64) -> String {
    match count {
        0..=9_999 => count.to_string(),
        10_000..=9_999_999 => format!("{:.1}k", count as f64 / 1e3),
        _ => format!("{:.1}M", count as f64 / 1e6),
    }
}

impl RunSpent {
    /// Adds the usage of one step.
    pub(crate) fn add(&mut self, usage: &Usage) {
        let tokens = usage.knows(Number::InputTokens) && usage.knows(Number::OutputTokens);
        self.join(&RunSpent {
            usage: usage.clone(),
            answers: 1,
            cost_unknown: usize::from(!usage.knows(Number::CostUsd)),
            tokens_unknown: usize::from(!tokens),
        });
    }

    /// Adds the usage of another run.
    pub(crate) fn join(&mut self, other: &RunSpent) {
        match (self.answers, other.answers) {
            (_, 0) => {}
            (0, _) => *self = other.clone(),
            _ => {
                self.usage.add(&other.usage);
                self.answers += other.answers;
                self.cost_unknown += other.cost_unknown;
                self.tokens_unknown += other.tokens_unknown;
            }
        }
    }

    /// Describes the usage of the run, with the numbers of unknown values.
    pub(crate) fn words(&self) -> String {
        let of = |unknown: usize, what: &str| {
            (0 < unknown && unknown < self.answers).then(|| format!("{what} of {unknown} unknown"))
        };
        let lacks = [of(self.tokens_unknown, "tokens"), of(self.cost_unknown, "cost")];
        let lacks: Vec<String> = lacks.into_iter().flatten().collect();
        let lacks =
            if lacks.is_empty() { String::new() } else { format!(" ({})", lacks.join(", ")) };
        let steps = if self.answers == 1 { "step" } else { "steps" };
        format!("{} {steps} asked a provider: {}{lacks}", self.answers, words(&self.usage))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_is_not_zero() {
        let free = Usage { input_tokens: Some(12), output_tokens: Some(0), ..Usage::default() };
        assert_eq!(words(&free), "12 tokens in, 0 out, cost unknown");
        assert_eq!(words(&Usage::default()), "tokens unknown, cost unknown");
        let paid = Usage { cost_usd: Some(0.0), input_tokens: Some(34_567), ..Usage::default() };
        assert_eq!(words(&paid), "34.6k tokens in, unknown out, $0.0000");
        let mut sum = RunSpent::default();
        [&paid, &free, &paid].into_iter().for_each(|usage| sum.add(usage));
        let told = "3 steps asked a provider: 69.1k tokens in, at least 0 out, at least $0.0000 \
                    (tokens of 2 unknown, cost of 1 unknown)";
        assert_eq!(sum.words(), told);
        let mut two = RunSpent::default();
        two.join(&sum);
        assert_eq!(two, sum);
        two.join(&RunSpent::default());
        assert_eq!(two, sum);
    }
}
