//! Answers that repeat the prompt: a command line tool may print its prompt, and a prompt contains
//! an example of the block that an answer has to end with. Such an example is not an answer.

use std::borrow::Cow;

use super::contract::last_block;

/// Number of bytes before an example that must match together with it. An agent may well end with
/// exactly the words of an example, but then it does not repeat the introduction to it.
const BEFORE: usize = 200;
/// Minimum length of that introduction; a shorter one proves nothing.
const LEAST_BEFORE: usize = 20;
/// Maximum number of examples of a prompt to search for.
const EXAMPLES: usize = 20;

/// Returns an answer without the examples of the prompt that it repeats.
pub(crate) fn without_examples<'a>(answer: &'a str, asked: &[Cow<str>]) -> Cow<'a, str> {
    let mut answer = Cow::Borrowed(answer);
    for prompt in asked {
        for example in examples(prompt) {
            if answer.contains(example) {
                answer = Cow::Owned(answer.replace(example, "\n"));
            }
        }
    }
    answer
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
        if rest[from..opening].trim().len() >= LEAST_BEFORE {
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
        parse(&without_examples(answer, &[PROMPT.into()]))
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
        assert_eq!(parse(&without_examples(&prompt, &asked)), Contract::Missing);
        for odd in ["", "```json", "```json\n{}\n```", "é```json\n{}\n```\n```json\n{}"] {
            without_examples(odd, &[odd.into()]);
        }
    }
}
