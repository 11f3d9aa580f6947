//! Writes a file anew with its switches.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::ops::Range;

use serde::Serialize;

/// What a mutant does to the text.
pub enum Edit {
    /// Another expression in the place of a whole one.
    Choice { whole: Range<usize>, pieces: Vec<Piece> },
    /// A match arm that does not match while the mutant is active: a condition is inserted. An arm with a condition of
    /// its own has that up to `end`, and no `word` (` if`) is needed.
    Unless { at: usize, word: &'static str, end: Option<usize> },
    /// A function that returns a value at once.
    Return { at: usize, value: String },
}

/// A part of another expression.
pub enum Piece {
    Text(String),
    /// A part of the source, which may have mutants of its own.
    Source(Range<usize>),
}

/// Where a mutant stands in the new text, in bytes.
#[derive(Serialize)]
pub struct Region {
    mutant: usize,
    start: usize,
    end: usize,
}

/// The start and the end of an expression. In this order, the outer one of two comes first.
type Place = (usize, Reverse<usize>);

/// A mutant's number, and the expression that it puts in a place.
type Alternative = (usize, Vec<Piece>);

pub struct Rewriter<'a> {
    source: &'a str,
    choices: BTreeMap<Place, Vec<Alternative>>,
    insertions: BTreeMap<usize, Vec<Insertion>>,
    text: String,
    regions: Vec<Region>,
}

struct Insertion {
    text: String,
    /// `None` for the end of a condition.
    mutant: Option<usize>,
}

impl<'a> Rewriter<'a> {
    pub fn new(source: &'a str) -> Self {
        let (choices, insertions) = (BTreeMap::new(), BTreeMap::new());
        Self { source, choices, insertions, text: String::new(), regions: Vec::new() }
    }

    pub fn add(&mut self, mutant: usize, edit: Edit) {
        let mut insert = |at: usize, text: String, mutant| {
            self.insertions.entry(at).or_default().push(Insertion { text, mutant });
        };
        match edit {
            Edit::Choice { whole, pieces } => {
                let place = (whole.start, Reverse(whole.end));
                self.choices.entry(place).or_default().push((mutant, pieces));
            }
            Edit::Unless { at, word, end } => {
                let (and, open) = if end.is_some() { (" &&", " (") } else { ("", "") };
                insert(at, format!("{word} !crate::mutant_switch::on({mutant}){and}{open}"), Some(mutant));
                if let Some(end) = end {
                    insert(end, ")".to_owned(), None);
                }
            }
            Edit::Return { at, value } => {
                let text = format!(" if crate::mutant_switch::on({mutant}) {{ return {value}; }}");
                insert(at, text, Some(mutant));
            }
        }
    }

    pub fn finish(mut self) -> (String, Vec<Region>) {
        self.write(0..self.source.len(), None);
        (self.text, self.regions)
    }

    /// Writes a part of the source with the switches in it, but not those of the expression
    /// `within`, which is being written.
    fn write(&mut self, part: Range<usize>, within: Option<Place>) {
        let mut at = part.start;
        let mut next_insertion = at;
        loop {
            let choice = self
                .choices
                .range((at, Reverse(usize::MAX))..)
                .map(|(place, _)| *place)
                .take_while(|(start, _)| *start < part.end)
                .find(|place| place.1.0 <= part.end && within.is_none_or(|outer| *place > outer));
            // One at the end of an expression belongs after it.
            let last = if within.is_none() { part.end + 1 } else { part.end };
            let insertion =
                self.insertions.range(next_insertion..last.max(next_insertion)).next().map(|(place, _)| *place);
            match (insertion, choice) {
                (Some(place), choice) if choice.is_none_or(|(start, _)| place <= start) => {
                    self.text.push_str(&self.source[at..place]);
                    self.insert(place);
                    (at, next_insertion) = (place, place + 1);
                }
                (_, Some(place)) => {
                    self.text.push_str(&self.source[at..place.0]);
                    self.choose(place);
                    at = place.1.0;
                    next_insertion = next_insertion.max(at);
                }
                (_, None) => break,
            }
        }
        self.text.push_str(&self.source[at..part.end]);
    }

    fn insert(&mut self, place: usize) {
        for Insertion { text, mutant } in &self.insertions[&place] {
            let start = self.text.len();
            self.text.push_str(text);
            self.regions.extend(mutant.map(|mutant| Region { mutant, start, end: self.text.len() }));
        }
    }

    fn choose(&mut self, place: Place) {
        let alternatives = self.choices.remove(&place).unwrap_or_default();
        let whole = place.0..place.1.0;
        self.text.push('(');
        for (mutant, pieces) in &alternatives {
            let start = self.text.len();
            self.text.push_str(&format!("if crate::mutant_switch::on({mutant}) {{ "));
            for piece in pieces {
                match piece {
                    Piece::Text(text) => self.text.push_str(text),
                    Piece::Source(part) => self.write(part.clone(), Some(place)),
                }
            }
            self.regions.push(Region { mutant: *mutant, start, end: self.text.len() });
            self.text.push_str(" } else ");
        }
        self.text.push_str("{ ");
        self.write(whole, Some(place));
        self.text.push_str(" })");
        self.choices.insert(place, alternatives);
    }
}
