//! What an answer cost, as far as it is known. What is not known is not zero.

use serde::{Deserialize, Serialize};

/// Tokens, money and turns.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Usage {
    /// What was read, that from a cache included.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub input_tokens: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output_tokens: Option<u64>,
    /// The part of what was read that came from a cache.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cached_tokens: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reasoning_tokens: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cost_usd: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub turns: Option<u64>,
    #[serde(skip)]
    pub counting: Counting,
}

/// Since when a provider counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Counting {
    #[default]
    ThisRun,
    /// Money since the conversation began, all else since this run did.
    CostOfSession,
    /// Everything since the conversation began.
    Session,
}

impl Usage {
    /// What this run alone cost, where `last` is what was told at the end of the run before it in
    /// the same conversation.
    pub fn since(&self, last: &Usage) -> Usage {
        // A counter that fell was begun anew.
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

    /// What is known now, and what was known before of all else.
    pub fn or(&self, before: &Usage) -> Usage {
        Usage {
            input_tokens: self.input_tokens.or(before.input_tokens),
            output_tokens: self.output_tokens.or(before.output_tokens),
            cached_tokens: self.cached_tokens.or(before.cached_tokens),
            reasoning_tokens: self.reasoning_tokens.or(before.reasoning_tokens),
            cost_usd: self.cost_usd.or(before.cost_usd),
            turns: self.turns.or(before.turns),
            counting: self.counting,
        }
    }

    /// Adds another, where something is known of it.
    pub fn add(&mut self, other: &Usage) {
        let tokens = |to: &mut Option<u64>, more: Option<u64>| {
            *to = to.map_or(more, |sum| Some(sum.saturating_add(more.unwrap_or(0))));
        };
        tokens(&mut self.input_tokens, other.input_tokens);
        tokens(&mut self.output_tokens, other.output_tokens);
        tokens(&mut self.cached_tokens, other.cached_tokens);
        tokens(&mut self.reasoning_tokens, other.reasoning_tokens);
        tokens(&mut self.turns, other.turns);
        let sum = self.cost_usd.map(|sum| sum + other.cost_usd.unwrap_or(0.0));
        self.cost_usd = sum.or(other.cost_usd);
    }

    /// Whether nothing at all is known.
    pub fn is_unknown(&self) -> bool {
        *self == Usage { counting: self.counting, ..Usage::default() }
    }
}
