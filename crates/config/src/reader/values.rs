//! Reads the values of a section.
//!
//! Where a value has a problem, the function has reported it and returns the value of the default: the file is refused
//! once all of it was read. A function whose option has no default returns `None` instead.

use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::{Number, Value};
use toml::de::DeValue;

use super::{Located, Rank, Section, SourcePosition, Text, join};
use crate::key_doc::{KeyDoc, ValueKind};
use crate::messages::{self, nearest};
use oncegate_settings::{Word, one_of, parse_duration, show_whole_path};

impl<'a> Section<'a> {
    pub fn boolean(&self, name: &str) -> bool {
        self.value(name, |position, value| match value {
            DeValue::Boolean(value) => Some(value),
            other => self.reader.wrong_kind(&position, ValueKind::Boolean, &other),
        })
    }

    /// A whole number in a range, which is part of the type's; `why` is the reason for the range's bounds.
    pub fn integer<T: TryFrom<usize>>(&self, name: &str, range: RangeInclusive<usize>, why: &str) -> T {
        self.value(name, |position, value| {
            let DeValue::Integer(number) = &value else {
                return self.reader.wrong_kind(&position, ValueKind::Integer, &value);
            };
            let number = usize::from_str_radix(number.as_str(), number.radix()).ok();
            let found = number.filter(|number| range.contains(number)).and_then(|number| T::try_from(number).ok());
            if found.is_none() {
                self.reader.problem(&position, format!("must be {} to {}: {why}", range.start(), range.end()));
            }
            found
        })
    }

    /// A text, a number or a boolean.
    pub fn scalar(&self, name: &str) -> Value {
        self.value(name, |position, value| {
            let text = |value| Some(self.reader.text(position, value, ValueKind::Scalar)?.value.into());
            scalar_to_json(&value).or_else(|| text(value))
        })
    }

    /// A duration, which may be zero.
    pub fn duration(&self, name: &str) -> Duration {
        self.parsed(name, parse_duration)
    }

    /// A duration that must not be zero.
    pub fn duration_above_zero(&self, name: &str) -> Duration {
        self.parsed(name, |text| match parse_duration(text)? {
            Duration::ZERO => Err("is too short: this must take more than no time".into()),
            duration => Ok(duration),
        })
    }

    /// A text, interpolated; `None` where it has a problem.
    pub fn text(&self, name: &str) -> Option<Text> {
        self.written(name, |position, value| self.reader.text(position, value, self.doc(name).kind))
    }

    /// A text as it is.
    pub fn string(&self, name: &str) -> String {
        self.parsed(name, |text| Ok(text.to_owned()))
    }

    /// A text, parsed; the error is the problem, beginning with a verb.
    pub fn parsed<T>(&self, name: &str, parse: impl Fn(&str) -> Result<T, String>) -> T {
        self.value(name, |position, value| self.parse(name, position, value, &parse))
    }

    /// A text, parsed; `None` for an empty one.
    pub fn optional<T>(&self, name: &str, parse: impl Fn(&str) -> Result<T, String>) -> Option<T> {
        self.parsed(name, |text| if text.is_empty() { Ok(None) } else { parse(text).map(Some) })
    }

    /// A text that must be written, parsed.
    pub fn required<T>(&self, name: &str, parse: impl Fn(&str) -> Result<T, String>) -> Option<T> {
        self.written(name, |position, value| self.parse(name, position, value, parse))
    }

    /// One of the words that the key is declared with.
    pub fn choice<T: Word>(&self, name: &str) -> T {
        self.value(name, |position, value| self.word(name, position, value))
    }

    /// Such a word, which must be written.
    pub fn required_choice<T: Word>(&self, name: &str) -> Option<T> {
        self.written(name, |position, value| self.word(name, position, value))
    }

    /// A list of words of this kind.
    pub fn choices<T: Word>(&self, name: &str) -> Vec<T> {
        self.value(name, |position, value| {
            let words = self.split(name, position, value)?.into_iter().map(|text| self.parse_word(text?));
            words.collect::<Vec<_>>().into_iter().collect()
        })
    }

    /// A list of texts, each parsed.
    pub fn list<T>(&self, name: &str, parse: impl Fn(&str) -> Result<T, String>) -> Vec<Located<T>> {
        self.value(name, |position, value| self.items(name, position, value, &parse))
    }

    /// Such a list without the positions.
    pub fn values<T>(&self, name: &str, parse: impl Fn(&str) -> Result<T, String>) -> Vec<T> {
        self.list(name, parse).into_iter().map(|item| item.value).collect()
    }

    /// Such a list without the positions, that has no value twice, and one at least.
    pub fn distinct_values<T: PartialEq>(
        &self,
        name: &str,
        why_not_empty: &str,
        parse: impl Fn(&str) -> Result<T, String>,
    ) -> Vec<T> {
        self.value(name, |position, value| {
            let mut values = Vec::new();
            for item in self.items(name, position.clone(), value, &parse)? {
                if values.contains(&item.value) {
                    self.reader.problem(&item.position, "is listed a second time");
                    return None;
                }
                values.push(item.value);
            }
            if values.is_empty() {
                self.reader.problem(&position, why_not_empty);
                return None;
            }
            Some(values)
        })
    }

    /// The texts of a list; `None` for each that has a problem.
    pub fn texts(&self, name: &str) -> Option<Vec<Option<Text>>> {
        self.written(name, |position, value| self.split(name, position, value))
    }

    /// A value that this function reads of this section.
    pub fn made<T>(&self, _: &str, read: impl FnOnce(&Self) -> T) -> T {
        read(self)
    }

    /// The table of this name, read by this function.
    pub fn inner<T>(&self, name: &str, read: impl FnOnce(&Self) -> T) -> T {
        read(&self.table(name))
    }

    /// The path that a key has as its value, in the folder that it belongs to.
    pub fn locate(&self, name: &str, path: impl AsRef<Path>) -> PathBuf {
        let folder = self.reader.folder(&self.position(name));
        folder.map_or_else(|| path.as_ref().into(), |folder| folder.join(path.as_ref()))
    }

    /// The name of a file, or nothing where it is absent because secrets are elsewhere.
    pub fn file_name(&self, name: &str) -> String {
        let path = self.string(name);
        let environment = self.reader.environment;
        let is_elsewhere = environment.lacks_secrets() && environment.read(&self.locate(name, &path)).is_err();
        if is_elsewhere { String::new() } else { path }
    }

    /// The content of the file that a key names.
    pub fn file(&self, name: &str, path: &str) -> Option<String> {
        let path = self.locate(name, path);
        let read = self.reader.read_file(&path);
        read.map_err(|error| self.problem(name, format!("`{}` cannot be read: {error}", show_whole_path(&path)))).ok()
    }

    /// Reports a problem of the content of the file that a key names.
    pub fn file_problem(&self, name: &str, path: &str, message: &str) {
        self.problem(name, format!("`{}` {message}", show_whole_path(&self.locate(name, path))));
    }

    /// Reports a problem of a key's value.
    pub fn problem(&self, name: &str, message: impl Into<String>) {
        self.reader.problem(&self.position(name), message);
    }

    /// Reports that a key is missing which another key makes necessary, where its table begins.
    pub fn missing(&self, name: &str, message: impl Into<String>) {
        let path = join(&self.position.path, name);
        self.reader.problem(&SourcePosition { path, ..self.position.clone() }, message);
    }

    /// Reports a problem of a key's value; where it is not written, at the table that should have it.
    pub fn blame(&self, name: &str, message: impl Into<String>) {
        match self.position(name).is_written() {
            true => self.problem(name, message),
            false => self.missing(name, message),
        }
    }

    /// Reports that a key is missing which another key makes necessary, if it is empty and has no problem of its own;
    /// `None` where it is empty.
    pub fn need(&self, name: &str, is_empty: bool, what: &str) -> Option<()> {
        if is_empty && self.is_right(&[name]) {
            self.missing(name, format!("is missing: {what}"));
        }
        (!is_empty).then_some(())
    }

    /// Reports that values contradict each other, at the greatest of their positions. A value that has a problem of its
    /// own contradicts nothing.
    pub fn conflict(&self, names: &[&str], message: impl Into<String>) {
        if self.is_right(names)
            && let Some(position) = names.iter().map(|name| self.position(name)).max()
        {
            self.reader.problem(&position, message);
        }
    }

    /// Whether none of these values has a problem of its own. They were read before.
    pub fn is_right(&self, names: &[&str]) -> bool {
        let unreadable = self.reader.unreadable.borrow();
        names.iter().all(|name| !unreadable.contains(&self.position(name).path))
    }

    pub fn position(&self, name: &str) -> SourcePosition {
        self.find(name).0
    }

    /// Reads a value that must be right: `None` where it has a problem, which `read` has reported, or is missing.
    fn written<T>(&self, name: &str, read: impl FnOnce(SourcePosition, DeValue<'a>) -> Option<T>) -> Option<T> {
        let (position, value) = self.find(name);
        if value.is_none() {
            let no_file = if self.reader.texts.name().is_none() { messages::NO_DEFAULT_FILE } else { "" };
            self.reader.problem(&position, format!("is missing: {}{no_file}", self.doc(name).about));
        }
        read(position, value?)
    }

    /// Reads a value, or its default where it has a problem, which `read` has reported.
    fn value<T>(&self, name: &str, read: impl Fn(SourcePosition, DeValue<'a>) -> Option<T>) -> T {
        self.written(name, &read).unwrap_or_else(|| {
            self.reader.unreadable.borrow_mut().insert(self.position(name).path);
            let (position, default) = self.default(name);
            default.and_then(|default| read(position, default)).expect("a test reads each default")
        })
    }

    fn parse<T>(
        &self,
        name: &str,
        position: SourcePosition,
        value: DeValue<'_>,
        parse: impl Fn(&str) -> Result<T, String>,
    ) -> Option<T> {
        let kind = self.doc(name).kind;
        self.reader.parse(&self.reader.text(position, value, kind)?, !matches!(kind, ValueKind::Concealed), parse)
    }

    fn word<T: Word>(&self, name: &str, position: SourcePosition, value: DeValue<'_>) -> Option<T> {
        self.parse_word(self.reader.text(position, value, self.doc(name).kind)?)
    }

    fn parse_word<T: Word>(&self, text: Text) -> Option<T> {
        let near = nearest(&text.value, T::WORDS.iter().copied()).filter(|_| text.shown == text.value);
        self.reader.parse(&text, true, |word| {
            let hint = near.map_or(String::new(), |near| format!("; did you mean `{near}`?"));
            T::parse(word).ok_or_else(|| format!("is not known: write {}{hint}", one_of(T::WORDS)))
        })
    }

    fn items<T>(
        &self,
        name: &str,
        position: SourcePosition,
        value: DeValue<'_>,
        parse: &impl Fn(&str) -> Result<T, String>,
    ) -> Option<Vec<Located<T>>> {
        let item = |text: Option<Text>| {
            let text = text?;
            Some(Located { value: self.reader.parse(&text, true, parse)?, position: text.position })
        };
        // Each item is read before one with a problem ends the list.
        let items: Vec<_> = self.split(name, position, value)?.into_iter().map(item).collect();
        items.into_iter().collect()
    }

    fn split(&self, name: &str, position: SourcePosition, value: DeValue<'_>) -> Option<Vec<Option<Text>>> {
        let list = match value {
            DeValue::Array(list) => list,
            text @ DeValue::String(_)
                if matches!(self.doc(name).kind, ValueKind::TextOrTexts | ValueKind::PlaceOrPlaces) =>
            {
                return Some(vec![self.reader.text(position, text, ValueKind::TextOrTexts)]);
            }
            other => return self.reader.wrong_kind(&position, self.doc(name).kind, &other),
        };
        let texts = list.into_iter().enumerate().map(|(index, item)| {
            let offset = if position.is_written() { item.span().start } else { 0 };
            let position = SourcePosition { rank: position.rank, offset, path: format!("{}[{index}]", position.path) };
            self.reader.text(position, item.into_inner(), ValueKind::Text)
        });
        Some(texts.collect())
    }

    /// The position and the value of a key; no value where it must be written and is not.
    pub(super) fn find(&self, name: &str) -> (SourcePosition, Option<DeValue<'a>>) {
        let path = join(&self.position.path, name);
        if let Some(external) = self.reader.external.iter().find(|external| external.path == path) {
            let position = SourcePosition { rank: Rank::External, offset: 0, path: external.from.into() };
            return (position, Some(DeValue::String(external.value.clone().into())));
        }
        for layer in &self.layers {
            if let Some(value) = layer.table.get(name) {
                let path = join(&layer.path, name);
                let position = SourcePosition { rank: layer.rank, offset: value.span().start, path };
                return (position, Some(value.get_ref().clone()));
            }
        }
        self.default(name)
    }

    fn default(&self, name: &str) -> (SourcePosition, Option<DeValue<'a>>) {
        let path = join(&self.position.path, name);
        match self.doc(name).default {
            None => (SourcePosition { path, ..self.position.clone() }, None),
            Some(default) => {
                let default = DeValue::parse(default).expect("defaults are TOML: a test parses each");
                (SourcePosition { rank: Rank::BuiltIn, offset: 0, path }, Some(default.into_inner()))
            }
        }
    }

    pub(super) fn doc(&self, name: &str) -> &'static KeyDoc {
        let doc = self.keys.iter().find(|key| key.name == name);
        doc.unwrap_or_else(|| unreachable!("`{name}` is read and not declared"))
    }
}

/// A number or a boolean as JSON has it; `None` for a number that JSON does not have, and for every other value.
fn scalar_to_json(value: &DeValue<'_>) -> Option<Value> {
    match value {
        DeValue::Boolean(value) => Some(Value::from(*value)),
        DeValue::Integer(number) => i64::from_str_radix(number.as_str(), number.radix()).ok().map(Value::from),
        DeValue::Float(number) => number.as_str().parse().ok().and_then(Number::from_f64).map(Value::Number),
        _ => None,
    }
}
