//! The cost of an answer, as far as it is known.
//!
//! **Invariant:** an unknown number is not zero. A sum of known and unknown numbers is a lower
//! bound, and stays marked as one.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

/// Tokens, cost and turns.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Usage {
    /// Tokens read, including those from a cache.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub input_tokens: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output_tokens: Option<u64>,
    /// The part of `input_tokens` that came from a cache.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cached_tokens: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reasoning_tokens: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cost_usd: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub turns: Option<u64>,
    /// The numbers that are lower bounds, because a part of the sum is unknown.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub at_least: BTreeSet<Number>,
    #[serde(skip)]
    pub counting: Counting,
}

/// One of the numbers, by the name of its field.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Number {
    InputTokens,
    OutputTokens,
    CachedTokens,
    ReasoningTokens,
    CostUsd,
    Turns,
}

/// The start of a provider's counters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Counting {
    #[default]
    ThisRun,
    /// Cost since the conversation began, everything else since this run began.
    CostOfSession,
    /// Everything since the conversation began.
    Session,
}

impl Usage {
    /// Returns the usage of this run alone. `last` is the usage reported at the end of the previous
    /// run in the same conversation.
    pub(crate) fn since(&self, last: &Usage) -> Usage {
        // A counter that decreased was reset.
        let tokens = |now: Option<u64>, last: Option<u64>| {
            now.map(|now| now.checked_sub(last.unwrap_or(0)).unwrap_or(now))
        };
        let money = |now: Option<f64>, last: Option<f64>| {
            let last = last.unwrap_or(0.0);
            now.map(|now| if now < last { now } else { now - last })
        };
        let mut usage = Usage { counting: Counting::ThisRun, ..self.clone() };
        if self.counting == Counting::Session {
            usage.input_tokens = tokens(self.input_tokens, last.input_tokens);
            usage.output_tokens = tokens(self.output_tokens, last.output_tokens);
            usage.cached_tokens = tokens(self.cached_tokens, last.cached_tokens);
            usage.reasoning_tokens = tokens(self.reasoning_tokens, last.reasoning_tokens);
        }
        if self.counting != Counting::ThisRun {
            usage.cost_usd = money(self.cost_usd, last.cost_usd);
        }
        usage
    }

    /// Returns the known numbers of `self`, and those of `before` where `self` has none.
    pub(crate) fn or(&self, before: &Usage) -> Usage {
        Usage {
            input_tokens: self.input_tokens.or(before.input_tokens),
            output_tokens: self.output_tokens.or(before.output_tokens),
            cached_tokens: self.cached_tokens.or(before.cached_tokens),
            reasoning_tokens: self.reasoning_tokens.or(before.reasoning_tokens),
            cost_usd: self.cost_usd.or(before.cost_usd),
            turns: self.turns.or(before.turns),
            at_least: self.at_least.clone(),
            counting: self.counting,
        }
    }

    /// Adds `other` to this usage.
    pub(crate) fn add(&mut self, other: &Usage) {
        let at_least = &mut self.at_least;
        at_least.extend(&other.at_least);
        let mut lacks = |number: Number, one_unknown: bool| {
            if one_unknown {
                at_least.insert(number);
            }
        };
        let mut tokens = |number: Number, sum: &mut Option<u64>, more: Option<u64>| {
            lacks(number, sum.is_some() != more.is_some());
            *sum = match (*sum, more) {
                (Some(sum), Some(more)) => Some(sum.saturating_add(more)),
                (sum, more) => sum.or(more),
            };
        };
        tokens(Number::InputTokens, &mut self.input_tokens, other.input_tokens);
        tokens(Number::OutputTokens, &mut self.output_tokens, other.output_tokens);
        tokens(Number::CachedTokens, &mut self.cached_tokens, other.cached_tokens);
        tokens(Number::ReasoningTokens, &mut self.reasoning_tokens, other.reasoning_tokens);
        tokens(Number::Turns, &mut self.turns, other.turns);
        lacks(Number::CostUsd, self.cost_usd.is_some() != other.cost_usd.is_some());
        self.cost_usd = match (self.cost_usd, other.cost_usd) {
            (Some(sum), Some(more)) => Some(sum + more),
            (sum, more) => sum.or(more),
        };
    }

    /// Adds this to an optional sum. `None` means that nothing was added, which differs from a
    /// usage whose numbers are all unknown.
    pub(crate) fn add_to(&self, sum: &mut Option<Usage>) {
        match sum {
            Some(sum) => sum.add(self),
            none => *none = Some(self.clone()),
        }
    }

    /// Returns true if a number is known completely.
    pub(crate) fn knows(&self, number: Number) -> bool {
        let known = match number {
            Number::InputTokens => self.input_tokens.is_some(),
            Number::OutputTokens => self.output_tokens.is_some(),
            Number::CachedTokens => self.cached_tokens.is_some(),
            Number::ReasoningTokens => self.reasoning_tokens.is_some(),
            Number::CostUsd => self.cost_usd.is_some(),
            Number::Turns => self.turns.is_some(),
        };
        known && !self.at_least.contains(&number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sum_with_something_unknown_is_at_least_the_rest() {
        let known = Usage { input_tokens: Some(5), cost_usd: Some(0.5), ..Usage::default() };
        let paid = Usage { input_tokens: Some(2), output_tokens: Some(1), ..Usage::default() };
        let mut sum = None;
        known.add_to(&mut sum);
        assert_eq!(sum, Some(known.clone()), "one is known as it is");
        known.add_to(&mut sum);
        assert!(sum.as_ref().unwrap().at_least.is_empty());
        paid.add_to(&mut sum);
        let sum = sum.unwrap();
        assert_eq!((sum.input_tokens, sum.output_tokens), (Some(12), Some(1)));
        assert!(sum.knows(Number::InputTokens) && !sum.knows(Number::OutputTokens));
        assert!(!sum.knows(Number::CostUsd) && !sum.knows(Number::Turns));
        assert_eq!((sum.cost_usd, sum.turns), (Some(1.0), None));
        let json = serde_json::to_value(&sum).unwrap();
        assert_eq!(json["at_least"], serde_json::json!(["output_tokens", "cost_usd"]));
        assert_eq!(serde_json::from_value::<Usage>(json).unwrap(), sum);
        let mut more = known;
        more.add(&sum);
        assert_eq!(more.at_least, sum.at_least, "it stays so");
    }
}
