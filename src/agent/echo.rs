//! Answers that repeat the prompt: a command line tool may print its prompt, and a prompt contains
//! what an answer has to contain: an example of the block at its end, a schema, the signal that
//! ends a loop. Text that an answer repeats from its prompt is not the agent's own.

use std::borrow::Cow;

use super::contract::last_block;

/// Number of bytes before an example that must match together with it. An agent may well end with
/// exactly the words of an example, but then it does not repeat the introduction to it.
const BEFORE: usize = 200;
/// Minimum length of that introduction and of a prompt; a shorter text proves nothing.
const LEAST: usize = 20;
/// Maximum number of examples of a prompt to search for.
const EXAMPLES: usize = 20;

/// Returns an answer without the prompts that it repeats as a whole, and without the examples of a
/// prompt that it repeats.
pub(crate) fn own_part<'a>(answer: &'a str, asked: &[Cow<str>]) -> Cow<'a, str> {
    let mut answer = without_prompts(answer, asked);
    for example in asked.iter().flat_map(|prompt| examples(prompt)) {
        if answer.contains(example) {
            answer = Cow::Owned(answer.replace(example, "\n"));
        }
    }
    answer
}

/// Returns true if an answer consists of nothing but its prompt.
pub(crate) fn only_repeats(answer: &str, asked: &[Cow<str>]) -> bool {
    !answer.trim().is_empty() && without_prompts(answer, asked).trim().is_empty()
}

/// Removes prompts that an answer repeats as separate lines. Inside a line, the words of a short
/// prompt may belong to the answer.
fn without_prompts<'a>(answer: &'a str, asked: &[Cow<str>]) -> Cow<'a, str> {
    let mut answer = Cow::Borrowed(answer);
    let prompts = asked.iter().map(|prompt| prompt.trim()).filter(|prompt| prompt.len() >= LEAST);
    for prompt in prompts {
        let mut own = String::new();
        let mut from = 0;
        for (at, _) in answer.match_indices(prompt) {
            if fills_lines(&answer[..at], &answer[at + prompt.len()..]) {
                own.push_str(&answer[from..at]);
                from = at + prompt.len();
            }
        }
        if from > 0 {
            own.push_str(&answer[from..]);
            answer = Cow::Owned(own);
        }
    }
    answer
}

/// Returns true if a text between these two fills whole lines, apart from white space.
fn fills_lines(before: &str, behind: &str) -> bool {
    const SPACE: [char; 3] = [' ', '\t', '\r'];
    let before = before.trim_end_matches(SPACE);
    let behind = behind.trim_start_matches(SPACE);
    (before.is_empty() || before.ends_with('\n')) && (behind.is_empty() || behind.starts_with('\n'))
}

/// Returns the JSON blocks of a prompt, each with the end of the text before it.
fn examples(prompt: &str) -> Vec<&str> {
    let (mut found, mut rest) = (Vec::new(), prompt);
    while let Some(json) = last_block(rest).json.filter(|_| found.len() < EXAMPLES) {
        let (start, behind) =
            (json.as_ptr() as usize - rest.as_ptr() as usize, last_block(rest).behind);
        let opening = rest[..start].trim_end().rfind('\n').unwrap_or(0);
        let from = opening.saturating_sub(BEFORE);
        let from = (from..=opening).find(|at| rest.is_char_boundary(*at)).unwrap_or(opening);
        if rest[from..opening].trim().len() >= LEAST {
            found.push(rest[from..behind].trim());
        }
        rest = &rest[..opening];
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::agent::contract::{Contract, parse};

    const PROMPT: &str = "Do the work that is described here.\n\nEnd with one JSON block:\n\n\
        ```json\n{\"success\": true, \"summary\": \"words\"}\n```\n\n- `success` is a boolean.\n";

    fn read(answer: &str) -> Contract {
        parse(&own_part(answer, &[PROMPT.into()]))
    }

    #[test]
    fn an_example_that_is_repeated_is_no_answer() {
        assert!(matches!(parse(PROMPT), Contract::Found(_)));
        assert_eq!(read(PROMPT), Contract::Missing);
        assert_eq!(read(&format!("You asked:\n{PROMPT}Fine.\n")), Contract::Missing);
        let answered = format!("{PROMPT}\nDone.\n\n```json\n{{\"success\": false}}\n```\n");
        assert!(matches!(read(&answered), Contract::Found(output) if !output.success));
    }

    #[test]
    fn an_agent_may_use_the_words_of_an_example() {
        let said = "```json\n{\"success\": true, \"summary\": \"words\"}\n```";
        assert!(matches!(read(said), Contract::Found(_)));
        assert!(matches!(read(&format!("I did it.\n\n{said}")), Contract::Found(_)));
    }

    #[test]
    fn every_example_of_a_prompt_is_known() {
        let prompt = format!("{PROMPT}\n{}", PROMPT.replace("words", "other words"));
        let asked = [Cow::from(prompt.as_str())];
        assert_eq!(parse(&own_part(&prompt, &asked)), Contract::Missing);
        for odd in ["", "```json", "```json\n{}\n```", "é```json\n{}\n```\n```json\n{}"] {
            own_part(odd, &[odd.into()]);
        }
    }

    #[test]
    fn a_repeated_prompt_is_not_the_agents_own() {
        let prompt = "Work on it. When all is done, say:\nCOMPLETE\n";
        let asked = [Cow::from(prompt)];
        assert!(only_repeats(prompt, &asked) && only_repeats(&format!("\n{prompt}\n"), &asked));
        assert!(!only_repeats("", &asked) && !only_repeats("COMPLETE", &asked));
        let answer = format!("{prompt}Not yet.\n");
        assert!(!only_repeats(&answer, &asked));
        assert_eq!(own_part(&answer, &asked).trim(), "Not yet.");
        assert_eq!(own_part(&format!("{prompt}COMPLETE"), &asked).trim(), "COMPLETE");
        // A short prompt proves nothing, and neither do its words inside a line.
        assert!(!only_repeats("ping", &["ping".into()]));
        let said = r#"{"task": "Summarize all of the text"}"#;
        assert_eq!(own_part(said, &["Summarize all of the text".into()]), said);
    }
}
