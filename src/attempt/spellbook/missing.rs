//! Finds variables that the spells of a workflow read and that nothing provides, as far as this is
//! known before a run starts.

use std::collections::{BTreeMap, HashMap};
use std::rc::Rc;

use serde_json::{Map, Value};

use super::order::{Can, Order};
use super::{Page, is_page_of};
use crate::attempt::prompt::spell::SYSTEM_PROMPT;
use crate::template::spell::{Fault, MAX_INCLUDES, Spell};
use crate::workflow::Problem;
use crate::workflow::plan::{
    Action, Block, Plan, Prompt, ShellText, SpellSource, SpellUse, Step, SystemPromptUse, When,
    Words,
};
use crate::yaml::problem::nearest;

/// Fields that every bead has; most beads have more.
const BEAD: [&str; 7] = ["id", "title", "body", "description", "type", "priority", "labels"];

/// The inputs of a run at its start, in addition to step results.
pub(crate) struct Given<'g> {
    /// Its variables.
    pub context: &'g Map<String, Value>,
    /// Its bead.
    pub bead: Option<&'g Value>,
}

/// The beads that steps name, by the names they use.
pub(crate) type Beads = Map<String, Value>;

/// Reports variables that can never have a value where a spell reads them: no step that may run
/// before, input, bead, or variable of the run has that name.
pub(crate) fn missing(plan: &Plan, pages: &[Page], beads: &Beads, given: &Given) -> Vec<Problem> {
    let found = look(plan, pages, beads, Some(given)).into_iter();
    found.filter(|lack| lack.sure != Sure::Doubt).map(|lack| lack.problem).collect()
}

/// Reports problems that exist for any inputs of a run, as errors; and problems that only an input
/// with the name of a step would fix, as warnings.
pub(crate) fn incurable(plan: &Plan, pages: &[Page], beads: &Beads) -> Vec<Problem> {
    let told = |Lack { sure, problem }: Lack| match sure {
        Sure::Always => Some(problem),
        Sure::UnlessGiven => Some(problem.into_warning()),
        Sure::Doubt => None,
    };
    look(plan, pages, beads, None).into_iter().filter_map(told).collect()
}

/// Reports what may be missing: results of steps that the reader does not wait for, and fields
/// whose names resemble known ones.
pub(crate) fn doubtful(plan: &Plan, pages: &[Page], beads: &Beads) -> Vec<Problem> {
    let found = look(plan, pages, beads, None).into_iter();
    found.filter(|lack| lack.sure == Sure::Doubt).map(|lack| lack.problem).collect()
}

/// A variable that is read and may be missing.
#[derive(PartialEq)]
struct Lack {
    sure: Sure,
    problem: Problem,
}

/// Certainty that the variable is missing.
#[derive(Clone, Copy, PartialEq)]
enum Sure {
    Always,
    /// A variable given at the start of the run could have the name.
    UnlessGiven,
    Doubt,
}

fn look<'m>(
    plan: &'m Plan,
    pages: &'m [Page],
    beads: &'m Beads,
    given: Option<&'m Given<'m>>,
) -> Vec<Lack> {
    let mut results: BTreeMap<String, Vec<&'m Step>> = BTreeMap::new();
    plan.root().walk(&mut |step| {
        for name in [Some(&step.name), step.alias.as_ref()].into_iter().flatten() {
            results.entry(folded(name)).or_default().push(step);
        }
    });
    let read = |page: &Page| {
        let spell = Spell::parse(&page.path, &page.text).ok()?;
        Some((page.path.clone(), Rc::new(spell)))
    };
    let spells = pages.iter().filter_map(read).collect();
    let order = Order::of(plan.root());
    let mut missing = Missing { pages, beads, spells, given, results, order, found: Vec::new() };
    missing.block(plan.root(), false);
    missing.found
}

struct Missing<'m> {
    pages: &'m [Page],
    beads: &'m Beads,
    /// The valid pages, by path.
    spells: HashMap<String, Rc<Spell>>,
    /// `None` if the inputs are not known yet.
    given: Option<&'m Given<'m>>,
    /// The steps that have results, by name.
    results: BTreeMap<String, Vec<&'m Step>>,
    order: Order<'m>,
    found: Vec<Lack>,
}

/// A step as the context of a read.
#[derive(Clone, Copy)]
struct At<'s> {
    step: &'s Step,
    looped: bool,
}

/// The reason why a path has no value.
enum Why<'m> {
    /// Nothing has the first name.
    Nobody,
    /// The second name is not one of these.
    NoField(Vec<&'m str>),
    /// It is a result that is not available yet, or not at this step.
    Result(Can, &'m Step),
    /// There is no previous step, because the step waits for this number of steps.
    NotOneBefore(usize),
    /// The second name is not a standard field of results, but resembles this one.
    Like(&'static str),
    /// The second name is not a standard field of beads, but resembles this one.
    LikeOfBead(&'static str),
}

impl<'m> Missing<'m> {
    fn block(&mut self, block: &'m Block, looped: bool) {
        for step in &block.steps {
            self.step(At { step, looped });
            if let Some(inner) = step.inner() {
                self.block(inner, true);
            }
        }
    }

    fn step(&mut self, at: At<'m>) {
        if let Some(When::Spell(spell)) = &at.step.when {
            self.look(at, spell, &[], 0);
        }
        match &at.step.action {
            Action::Shell { script: ShellText::Spell(script) } => self.look(at, script, &[], 0),
            Action::Prompt(Prompt { words: Words::Spell(used), .. }) => self.used(at, used),
            _ => {}
        }
    }

    fn used(&mut self, at: At<'m>, used: &SpellUse) {
        for (_, value) in &used.input {
            value.spells(&mut |spell| self.look(at, spell, &[], 0));
        }
        let mut own: Vec<String> = used.input.iter().map(|(key, _)| folded(key)).collect();
        if !used.contract {
            own.push("no_contract".into());
        }
        match &used.source {
            SpellSource::Inline(spell) => self.look(at, spell, &own, 0),
            SpellSource::Named(name) => self.named(at, name, &own, 0),
        }
        own.push("spell_content".into());
        match &used.system_prompt {
            SystemPromptUse::None => {}
            SystemPromptUse::Default => self.page(at, SYSTEM_PROMPT, &own, 0),
            SystemPromptUse::File(path) => self.page(at, path, &own, 0),
        }
    }

    fn named(&mut self, at: At<'m>, name: &str, own: &[String], depth: usize) {
        let name = name.strip_suffix(".md").unwrap_or(name);
        if let Some(page) = self.pages.iter().find(|page| is_page_of(page, name)) {
            self.page(at, &page.path, own, depth);
        }
    }

    fn page(&mut self, at: At<'m>, path: &str, own: &[String], depth: usize) {
        if let Some(spell) = self.spells.get(path).cloned() {
            self.look(at, &spell, own, depth);
        }
    }

    /// Checks one spell, which has variables of its own, and its includes.
    fn look(&mut self, at: At<'m>, spell: &Spell, own: &[String], depth: usize) {
        let may_be = |path: &[String]| match self.why_not(at, path, own) {
            None | Some(Why::Like(_) | Why::LikeOfBead(_) | Why::Result(Can::Beside, _)) => true,
            Some(_) => false,
        };
        let reads = spell.reads(&may_be);
        for (path, place) in reads.paths {
            let Some(why) = self.why_not(at, &path, own) else { continue };
            let lack = told(at, &path, &why, place);
            if !self.found.contains(&lack) {
                self.found.push(lack);
            }
        }
        for (name, given, _) in reads.includes.iter().filter(|_| depth < MAX_INCLUDES) {
            let own: Vec<String> =
                own.iter().cloned().chain(given.iter().map(|key| folded(key))).collect();
            self.named(at, name, &own, depth + 1);
        }
    }

    /// Returns the reason why a path can never have a value here, or may have none.
    fn why_not(&self, at: At<'m>, path: &[String], own: &[String]) -> Option<Why<'m>> {
        let name = folded(path.first()?);
        if own.contains(&name) {
            return None;
        }
        let given = |given: &Given| given.context.keys().any(|key| folded(key) == name);
        let in_context = self.given.is_some_and(given);
        let field = path.get(1).map(String::as_str);
        let one_of = |fields: &[&'static str]| match field {
            Some(field) if !in_context && !fields.contains(&field) => {
                Some(Why::NoField(fields.to_vec()))
            }
            _ => None,
        };
        match name.as_str() {
            "workflow" => one_of(&["name", "run_id"]),
            "step" => one_of(&["name"]),
            "attempt" => None,
            "loop" if at.looped => one_of(&["name", "index", "iteration", "total"]),
            "item" if at.looped => None,
            "agent" if at.step.agent.is_some() => None,
            "previous" if !in_context => self.previous(at, field),
            "bead" | "task" => {
                let lacks = |bead: &'m Map<String, Value>| {
                    let lacks = field.filter(|field| !bead.contains_key(*field));
                    lacks.map(|_| Why::NoField(bead.keys().map(String::as_str).collect()))
                };
                let own = at.step.bead.as_ref();
                let of_run = || self.given.map(|given| given.bead);
                match own.map(|own| Some(self.beads.get(&own.name))).unwrap_or_else(of_run) {
                    Some(Some(Value::Object(bead))) => lacks(bead),
                    Some(_) if own.is_none() && !in_context => Some(Why::Nobody),
                    Some(_) => None,
                    None => near_bead_field(field),
                }
            }
            _ if in_context => None,
            _ => match self.results.get(&name) {
                Some(steps) => self.result(at, steps, field),
                None => self.given.map(|_| Why::Nobody),
            },
        }
    }

    /// Returns the reason why no step of this name has a result here, or why the result lacks this
    /// field.
    fn result(&self, at: At<'m>, steps: &[&'m Step], field: Option<&str>) -> Option<Why<'m>> {
        let known = steps.iter().map(|step| (self.order.can(step, at.step), *step));
        match known.min_by_key(|(can, _)| *can)? {
            (Can::Before, _) => no_field(steps, field),
            (Can::Beside, step) => {
                Some(no_field(steps, field).unwrap_or(Why::Result(Can::Beside, step)))
            }
            (can, step) => Some(Why::Result(can, step)),
        }
    }

    fn previous(&self, at: At<'m>, field: Option<&str>) -> Option<Why<'m>> {
        match self.order.waits_for(at.step) {
            Some(1) | None => {}
            Some(count) => return Some(Why::NotOneBefore(count)),
        }
        let all: Vec<&Step> = self.results.values().flatten().copied().collect();
        no_field(&all, field)
    }
}

/// Returns the reason why none of these steps has a field of this name. An agent, and a command
/// that prints JSON, may have any field.
fn no_field<'m>(steps: &[&Step], field: Option<&str>) -> Option<Why<'m>> {
    let field = field.filter(|field| !RESULT.contains(field))?;
    let is_script =
        |step: &&Step| matches!(step.action, Action::Shell { script: ShellText::Spell(_) });
    match steps.iter().all(is_script) {
        true => Some(Why::NoField(RESULT.to_vec())),
        false if OTHER_FIELDS.contains(&field) => None,
        false => nearest(field, RESULT).map(Why::Like),
    }
}

/// Returns the reason why an unknown bead may lack a field: the name resembles a field that every
/// bead has.
fn near_bead_field<'m>(field: Option<&str>) -> Option<Why<'m>> {
    let field = field.filter(|field| !BEAD.contains(field))?;
    nearest(field, BEAD).map(Why::LikeOfBead)
}

/// Describes a path without a value.
fn told(at: At, path: &[String], why: &Why, place: Fault) -> Lack {
    let reader = &at.step.name;
    let end = usize::from(matches!(why, Why::NoField(_) | Why::Like(_) | Why::LikeOfBead(_)));
    let written = path[..=end].join(".");
    let guard = format!("where it may be missing, write `{{{{if .{written}}}}}` or `default`");
    let nothing = format!("`.{written}` is nothing that this run has: `{reader}` would fail");
    let (sure, message, hint) = match why {
        Why::Nobody => {
            let cure = match written.as_str() {
                "bead" | "task" => "give it with `--bead FILE|ID`".into(),
                "loop" | "item" => "only a step in a loop has it".into(),
                "agent" => "only a step with `agent` has it".into(),
                name => format!("give it with `--context {name}=…`"),
            };
            (Sure::UnlessGiven, nothing, format!("{cure}; {guard}"))
        }
        Why::NoField(known) => {
            let near = nearest(&path[end], known.iter().copied());
            let near = near.map(|near| format!("did you mean `{near}`?"));
            (Sure::Always, nothing, near.unwrap_or(guard))
        }
        Why::Result(Can::Beside, step) => {
            let name = &step.name;
            let message = format!(
                "`.{written}` is read by `{reader}`, which does not wait for `{name}`: it may be \
                 missing"
            );
            (Sure::Doubt, message, format!("add `{name}` to `depends_on`"))
        }
        Why::Result(can, step) => {
            let name = &step.name;
            let what = match can {
                Can::Itself if std::ptr::eq(*step, at.step) => format!("`{name}` itself comes to"),
                Can::Itself => format!("`{name}` comes to, which `{reader}` is a part of"),
                Can::Inside => format!("`{name}` comes to, which only steps of its loop know"),
                _ => format!("`{name}` comes to, which `{reader}` runs before"),
            };
            let message = format!("`.{written}` is what {what}: `{reader}` would fail");
            (Sure::UnlessGiven, message, guard)
        }
        Why::NotOneBefore(count) => {
            let message =
                format!("there is no `.previous` for `{reader}`, which waits for {count} nodes");
            let hint = format!("only one that waits for exactly one other has it; {guard}");
            (Sure::UnlessGiven, message, hint)
        }
        Why::LikeOfBead(near) => {
            let message = format!("`.{written}` is no field that every bead has");
            (Sure::Doubt, message, format!("did you mean `{near}`?"))
        }
        Why::Like(near) => {
            let message = format!("`.{written}` is no field that every result has");
            (Sure::Doubt, message, format!("did you mean `{near}`?"))
        }
    };
    let problem = Problem::from(&Fault { message, hint: Some(hint), ..place });
    Lack { sure, problem: if sure == Sure::Doubt { problem.into_warning() } else { problem } }
}

/// Fields of a script's result.
const RESULT: [&str; 9] = [
    "attempt",
    "error",
    "exit_code",
    "failed",
    "output",
    "outputs",
    "status",
    "success",
    "summary",
];

/// Further fields that other results may have.
const OTHER_FIELDS: [&str; 3] = ["iteration", "json", "lines"];

fn folded(name: &str) -> String {
    name.replace('-', "_")
}
