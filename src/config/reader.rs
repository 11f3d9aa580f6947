//! Reads a parsed file key by key, and collects every problem with its position.
//!
//! A [`Section`] is a table with its fallbacks. A key is looked up in this order: flags and variables, the file's own
//! table, the file's defaults for it, the default of [`super::key_docs`]. The preset of a dialect comes behind the table that
//! names the dialect. All values are parsed by the same code, so a default is checked like a written value. A getter that
//! returns `None` has noted the problem already: its caller goes on to the next key, and gives up only when everything has
//! been read.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::fmt;
use std::io;
use std::ops::RangeInclusive;
use std::path::Path;
use std::time::Duration;

use serde_json::Value;
use toml::de::{DeTable, DeValue};

use super::environment::Environment;
use super::interpolate::{find_unfilled_placeholder, interpolate};
use super::key_docs::{self, KeyDoc, ValueKind};
use super::nearest::nearest;
use super::problem::{ConfigProblem, ConfigProblems, line_and_column};
use super::source_files::SourceFiles;
use super::value_origins::{ValueOrigin, ValueOrigins};
use super::{scalar, units, wording};

/// The reader of one file.
pub(super) struct ConfigReader<'a> {
    /// The file's name; `None` where the values come from flags and variables alone.
    file: Option<&'a str>,
    text: &'a str,
    environment: &'a dyn Environment,
    /// A set: every route reads a wrong value in `[defaults]`, and the problem is reported once.
    problems: RefCell<BTreeSet<ConfigProblem>>,
    files: RefCell<SourceFiles>,
}

/// The position of a value. Where two values contradict each other, the problem is reported at the greater position:
/// the more specific one, or else the later one.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct SourcePosition {
    rank: Rank,
    offset: usize,
    path: String,
}

/// The specificity of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Rank {
    BuiltIn,
    Preset,
    Defaults,
    Own,
    External,
}

impl SourcePosition {
    /// Whether the value was written, rather than left at its default or at a dialect's preset.
    pub(super) fn is_written(&self) -> bool {
        !matches!(self.rank, Rank::BuiltIn | Rank::Preset)
    }
}

/// The key, flag or variable.
impl fmt::Display for SourcePosition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.path)
    }
}

/// A value and its position.
#[derive(Clone, Debug)]
pub(super) struct Located<T> {
    pub value: T,
    pub position: SourcePosition,
}

/// A text, interpolated.
pub(super) struct Text {
    pub value: String,
    /// The text as a problem may show it: before interpolation.
    pub shown: String,
    /// Whether its `${…}` were filled in; those of flags and variables are not.
    pub is_interpolated: bool,
    pub position: SourcePosition,
}

/// A table, and the fallbacks for the keys that it lacks.
pub(super) struct Section<'a> {
    reader: &'a ConfigReader<'a>,
    keys: &'static [KeyDoc],
    /// The position at which a missing key is reported.
    position: SourcePosition,
    external: Vec<ExternalValue>,
    layers: Vec<Layer<'a>>,
}

/// The value that a flag or a variable gives a key.
pub(super) struct ExternalValue {
    pub key: &'static str,
    /// The name of the flag or variable.
    pub from: &'static str,
    pub value: String,
}

#[derive(Clone)]
struct Layer<'a> {
    rank: Rank,
    path: String,
    table: &'a DeTable<'a>,
}

enum Raw<'a> {
    External(String),
    Toml(DeValue<'a>),
}

impl<'a> ConfigReader<'a> {
    pub(super) fn new(file: Option<&'a str>, text: &'a str, environment: &'a dyn Environment) -> Self {
        Self { file, text, environment, problems: RefCell::default(), files: RefCell::default() }
    }

    /// The file's top table. Checks that all keys, at any depth, are known.
    pub(super) fn top(&'a self, table: &'a DeTable<'a>) -> Section<'a> {
        self.check_names("", table, key_docs::TOP);
        let position = SourcePosition { rank: Rank::Own, offset: 0, path: String::new() };
        let layers = vec![Layer { rank: Rank::Own, path: String::new(), table }];
        Section { reader: self, keys: key_docs::TOP, position, external: Vec::new(), layers }
    }

    pub(super) fn environment(&self) -> &'a dyn Environment {
        self.environment
    }

    /// Notes a problem.
    pub(super) fn problem(&self, position: &SourcePosition, message: impl Into<String>) {
        let file = self.file.filter(|_| position.rank != Rank::External);
        self.problems.borrow_mut().insert(ConfigProblem {
            file: file.map(Into::into),
            position: file.filter(|_| position.is_written()).map(|_| line_and_column(self.text, position.offset)),
            path: position.path.clone(),
            message: message.into(),
        });
    }

    /// Reads a file of certificates, or of a key.
    pub(super) fn tls_file(&self, path: &Text) -> Option<String> {
        let read = self.read_file(Path::new(&path.value));
        read.map_err(|error| self.problem(&path.position, format!("`{}` cannot be read: {error}", path.value))).ok()
    }

    /// Reads a file and remembers its version.
    pub(super) fn read_file(&self, path: &Path) -> io::Result<String> {
        let text = self.environment.read(path)?;
        self.files.borrow_mut().add(path, text.as_bytes());
        Ok(text)
    }

    /// All files that were read.
    pub(super) fn files(&self) -> SourceFiles {
        self.files.borrow().clone()
    }

    /// Parses a text; the error is the problem, beginning with a verb.
    pub(super) fn parse<T>(&self, text: Text, parse: impl FnOnce(&str) -> Result<T, String>) -> Option<Located<T>> {
        match parse(&text.value) {
            Ok(value) => Some(Located { value, position: text.position }),
            Err(message) => {
                self.problem(&text.position, format!("`{}` {message}", text.shown));
                None
            }
        }
    }

    /// All problems; `None` if there are none.
    pub(super) fn into_problems(self) -> Option<ConfigProblems> {
        let problems = self.problems.into_inner();
        (!problems.is_empty()).then(|| ConfigProblems(problems.into_iter().collect()))
    }

    fn check_names(&self, before: &str, table: &DeTable<'_>, keys: &'static [KeyDoc]) {
        for (key, value) in table {
            let name: &str = key.get_ref();
            let path = join(before, name);
            match (keys.iter().find(|known| known.name == name).map(|known| known.kind), value.get_ref()) {
                (None, _) => {
                    let position = SourcePosition { rank: Rank::Own, offset: key.span().start, path };
                    self.problem(&position, wording::unknown_key(name, keys));
                }
                (Some(ValueKind::Table(keys)), DeValue::Table(table)) => self.check_names(&path, table, keys),
                (Some(ValueKind::Tables(keys)), DeValue::Array(tables)) => {
                    for (index, table) in tables.iter().enumerate() {
                        if let DeValue::Table(table) = table.get_ref() {
                            self.check_names(&format!("{path}[{index}]"), table, keys);
                        }
                    }
                }
                // The code that reads the value reports its problems.
                (Some(_), _) => {}
            }
        }
    }

    fn wrong_kind<T>(&self, position: &SourcePosition, kind: ValueKind, value: &DeValue<'_>) -> Option<T> {
        self.problem(position, wording::wrong_kind(kind, value));
        None
    }

    fn text(&self, position: SourcePosition, raw: Raw<'_>, kind: ValueKind) -> Option<Text> {
        let written = match raw {
            Raw::External(value) => {
                if let Some(problem) = find_unfilled_placeholder(&value) {
                    self.problem(&position, problem);
                    return None;
                }
                return Some(Text { shown: value.clone(), value, is_interpolated: false, position });
            }
            Raw::Toml(DeValue::String(written)) => written.into_owned(),
            Raw::Toml(other) => return self.wrong_kind(&position, kind, &other),
        };
        match interpolate(&written, self.environment, &|path| self.read_file(path)) {
            Ok(value) => Some(Text { value, shown: written, is_interpolated: true, position }),
            Err(messages) => {
                messages.into_iter().for_each(|message| self.problem(&position, message));
                None
            }
        }
    }
}

impl<'a> Section<'a> {
    /// Puts the values of flags and variables before those of the file.
    pub(super) fn with_external(mut self, external: Vec<ExternalValue>) -> Self {
        self.external = external;
        self
    }

    pub(super) fn reader(&self) -> &'a ConfigReader<'a> {
        self.reader
    }

    /// A table in this one. Each of its keys is looked up in every layer: a route whose `key` lacks a field takes that
    /// field from the `key` of `[defaults]`.
    pub(super) fn table(&self, name: &str) -> Section<'a> {
        let ValueKind::Table(keys) = self.doc(name).kind else { unreachable!("`{name}` is declared as a table") };
        let mut layers = Vec::new();
        for layer in &self.layers {
            let Some(value) = layer.table.get(name) else { continue };
            let path = join(&layer.path, name);
            match value.get_ref() {
                DeValue::Table(table) => layers.push(Layer { rank: layer.rank, path, table }),
                other => {
                    let position = SourcePosition { rank: layer.rank, offset: value.span().start, path };
                    self.reader.wrong_kind::<()>(&position, ValueKind::Table(keys), other);
                }
            }
        }
        let position = SourcePosition { path: join(&self.position.path, name), ..self.position.clone() };
        Section { reader: self.reader, keys, position, external: Vec::new(), layers }
    }

    /// An empty section: the fallback of tables for which the file has no defaults.
    pub(super) fn empty(&self) -> Section<'a> {
        let position = SourcePosition { rank: Rank::BuiltIn, offset: 0, path: String::new() };
        Section { reader: self.reader, keys: &[], position, external: Vec::new(), layers: Vec::new() }
    }

    /// The place of the first table that has a key, in the order in which they are looked up; `None` where none has it.
    pub(super) fn first_layer(&self, name: &str) -> Option<usize> {
        self.layers.iter().position(|layer| layer.table.contains_key(name))
    }

    /// The number of tables in a list, with and without problems.
    pub(super) fn count(&self, name: &str) -> usize {
        let lists = self.layers.iter().filter_map(|layer| layer.table.get(name)?.get_ref().as_array());
        lists.map(|list| list.len()).sum()
    }

    /// The tables of the first list of this name, each with `fallback` behind it; none if there is no list.
    pub(super) fn tables(&self, name: &str, fallback: &Section<'a>) -> Vec<Section<'a>> {
        let ValueKind::Tables(keys) = self.doc(name).kind else { unreachable!("`{name}` is declared as tables") };
        let first = self.layers.iter().find_map(|layer| Some((layer, layer.table.get(name)?)));
        let Some((layer, list)) = first else { return Vec::new() };
        let path = join(&layer.path, name);
        let position = SourcePosition { rank: layer.rank, offset: list.span().start, path: path.clone() };
        let mut sections = Vec::new();
        let DeValue::Array(list) = list.get_ref() else {
            self.reader.wrong_kind::<()>(&position, ValueKind::Tables(keys), list.get_ref());
            return sections;
        };
        for (index, item) in list.iter().enumerate() {
            let path = format!("{path}[{index}]");
            let position = SourcePosition { rank: layer.rank, offset: item.span().start, path };
            let DeValue::Table(table) = item.get_ref() else {
                self.reader.wrong_kind::<()>(&position, ValueKind::Table(keys), item.get_ref());
                continue;
            };
            let mut layers = vec![Layer { rank: layer.rank, path: position.path.clone(), table }];
            layers.extend(fallback.layers.iter().cloned());
            sections.push(Section { reader: self.reader, keys, position, external: Vec::new(), layers });
        }
        sections
    }

    /// Turns this section into the fallback of others.
    pub(super) fn into_defaults(mut self) -> Self {
        self.layers.iter_mut().for_each(|layer| layer.rank = Rank::Defaults);
        self
    }

    /// Puts a table of values that flags give before this section's own.
    pub(super) fn with_flags(mut self, flags: &'a DeTable<'a>) -> Self {
        self.layers.insert(0, Layer { rank: Rank::External, path: FLAG.into(), table: flags });
        self
    }

    /// Notes the places of the values that are written for keys of this section. `own` is the place of its own table.
    pub(super) fn note_origins(&self, own: ValueOrigin, origins: &mut ValueOrigins) {
        for external in &self.external {
            origins.note(external.key.to_owned(), ValueOrigin::External);
        }
        for layer in &self.layers {
            let origin = match layer.rank {
                Rank::BuiltIn => continue,
                Rank::Preset => ValueOrigin::Dialect,
                Rank::Defaults => ValueOrigin::Defaults,
                Rank::Own => own,
                Rank::External => ValueOrigin::External,
            };
            origins.note_table("", layer.table, origin);
        }
    }

    /// Puts a preset behind the first table that has this key, or behind all tables where none has it.
    pub(super) fn with_preset(mut self, key: &str, preset: &'a DeTable<'a>) -> Self {
        let named = self.layers.iter().position(|layer| layer.table.contains_key(key));
        let at = named.map_or(self.layers.len(), |index| index + 1);
        let path = self.position.path.clone();
        self.layers.insert(at, Layer { rank: Rank::Preset, path, table: preset });
        self
    }

    /// Puts another section of the same keys behind this one.
    pub(super) fn with_fallback(mut self, fallback: &Section<'a>) -> Self {
        self.layers.extend(fallback.layers.iter().cloned());
        self
    }

    /// A built-in table, with this section as its fallback.
    pub(super) fn with_built_in(&self, keys: &'static [KeyDoc], path: &str, table: &'a DeTable<'a>) -> Self {
        let position = SourcePosition { rank: Rank::BuiltIn, offset: 0, path: path.into() };
        let mut layers = vec![Layer { rank: Rank::BuiltIn, path: path.into(), table }];
        layers.extend(self.layers.iter().cloned());
        Section { reader: self.reader, keys, position, external: Vec::new(), layers }
    }

    pub(super) fn boolean(&self, name: &str) -> Option<Located<bool>> {
        match self.find(name)? {
            (position, Raw::Toml(DeValue::Boolean(value))) => Some(Located { value, position }),
            (position, Raw::Toml(other)) => self.reader.wrong_kind(&position, ValueKind::Boolean, &other),
            (position, Raw::External(_)) => unreachable!("flags and variables give only texts, not {position:?}"),
        }
    }

    /// A whole number in a range; `why` is the reason for the range's bounds.
    pub(super) fn integer(&self, name: &str, range: RangeInclusive<usize>, why: &str) -> Option<Located<usize>> {
        let (position, number) = match self.find(name)? {
            (position, Raw::Toml(DeValue::Integer(number))) => (position, number),
            (position, Raw::Toml(other)) => return self.reader.wrong_kind(&position, ValueKind::Integer, &other),
            (position, Raw::External(_)) => unreachable!("flags and variables give only texts, not {position:?}"),
        };
        let value = usize::from_str_radix(number.as_str(), number.radix()).ok();
        if let Some(value) = value.filter(|value| range.contains(value)) {
            return Some(Located { value, position });
        }
        self.reader.problem(&position, format!("must be {} to {}: {why}", range.start(), range.end()));
        None
    }

    /// A text, a number or a boolean.
    pub(super) fn scalar(&self, name: &str) -> Option<Located<Value>> {
        let (position, raw) = self.find(name)?;
        if let Raw::Toml(value) = &raw
            && let Some(value) = scalar::to_json(value)
        {
            return Some(Located { value, position });
        }
        let Text { value, position, .. } = self.reader.text(position, raw, ValueKind::Scalar)?;
        Some(Located { value: value.into(), position })
    }

    /// A duration, which may be zero.
    pub(super) fn duration(&self, name: &str) -> Option<Located<Duration>> {
        self.parsed(name, units::parse_duration)
    }

    /// A duration that must not be zero.
    pub(super) fn duration_above_zero(&self, name: &str) -> Option<Located<Duration>> {
        self.parsed(name, |text| match units::parse_duration(text)? {
            Duration::ZERO => Err("is too short: this must take more than no time".into()),
            duration => Ok(duration),
        })
    }

    pub(super) fn text(&self, name: &str) -> Option<Text> {
        let (position, raw) = self.find(name)?;
        self.reader.text(position, raw, self.doc(name).kind)
    }

    /// A text, parsed; the error is the problem, beginning with a verb.
    pub(super) fn parsed<T>(&self, name: &str, parse: impl FnOnce(&str) -> Result<T, String>) -> Option<Located<T>> {
        self.reader.parse(self.text(name)?, parse)
    }

    /// One of the words that the key is declared with.
    pub(super) fn choice<T>(&self, name: &str, meaning: impl FnOnce(&str) -> Option<T>) -> Option<Located<T>> {
        let ValueKind::Choice(words) = self.doc(name).kind else { unreachable!("`{name}` is declared as a choice") };
        let text = self.text(name)?;
        let hint = if text.shown == text.value { nearest(&text.value, words.iter().copied()) } else { None };
        self.reader.parse(text, |text| {
            let hint = hint.map_or(String::new(), |near| format!("; did you mean `{near}`?"));
            meaning(text).ok_or_else(|| format!("is not known: write {}{hint}", wording::one_of(words)))
        })
    }

    /// A list of texts, each parsed.
    pub(super) fn list<T>(
        &self,
        name: &str,
        mut parse: impl FnMut(&str) -> Result<T, String>,
    ) -> Option<Located<Vec<Located<T>>>> {
        let texts = self.texts(name)?;
        let expected = texts.value.len();
        let values: Vec<_> = texts.value.into_iter().filter_map(|text| self.reader.parse(text?, &mut parse)).collect();
        (values.len() == expected).then_some(Located { value: values, position: texts.position })
    }

    /// A list of texts; `None` for each that could not be interpolated.
    pub(super) fn texts(&self, name: &str) -> Option<Located<Vec<Option<Text>>>> {
        let (position, list) = match self.find(name)? {
            (position, Raw::Toml(DeValue::Array(list))) => (position, list),
            (position, raw @ Raw::Toml(DeValue::String(_)))
                if matches!(self.doc(name).kind, ValueKind::TextOrTexts) =>
            {
                let text = self.reader.text(position.clone(), raw, ValueKind::TextOrTexts);
                return Some(Located { value: vec![text], position });
            }
            (position, Raw::Toml(other)) => return self.reader.wrong_kind(&position, self.doc(name).kind, &other),
            (position, Raw::External(_)) => unreachable!("flags and variables give no list: {position:?}"),
        };
        let mut texts = Vec::new();
        for (index, item) in list.into_iter().enumerate() {
            let offset = if position.is_written() { item.span().start } else { 0 };
            let position = SourcePosition { rank: position.rank, offset, path: format!("{}[{index}]", position.path) };
            texts.push(self.reader.text(position, Raw::Toml(item.into_inner()), ValueKind::Text));
        }
        Some(Located { value: texts, position })
    }

    fn find(&self, name: &str) -> Option<(SourcePosition, Raw<'a>)> {
        let doc = self.doc(name);
        if let Some(external) = self.external.iter().find(|external| external.key == name) {
            let position = SourcePosition { rank: Rank::External, offset: 0, path: external.from.into() };
            return Some((position, Raw::External(external.value.clone())));
        }
        for layer in &self.layers {
            if let Some(value) = layer.table.get(name) {
                let path = join(&layer.path, name);
                let position = SourcePosition { rank: layer.rank, offset: value.span().start, path };
                return Some((position, Raw::Toml(value.get_ref().clone())));
            }
        }
        let path = join(&self.position.path, name);
        let Some(default) = doc.default else {
            let position = SourcePosition { path, ..self.position.clone() };
            let no_file = if self.reader.file.is_none() { wording::NO_DEFAULT_FILE } else { "" };
            self.reader.problem(&position, format!("is missing: {}{no_file}", doc.about));
            return None;
        };
        let default = DeValue::parse(default).expect("defaults are TOML: a test parses each");
        Some((SourcePosition { rank: Rank::BuiltIn, offset: 0, path }, Raw::Toml(default.into_inner())))
    }

    fn doc(&self, name: &str) -> &'static KeyDoc {
        let doc = self.keys.iter().find(|key| key.name == name);
        doc.unwrap_or_else(|| unreachable!("`{name}` is read and not declared"))
    }
}

/// The path of the tables that hold flags.
const FLAG: &str = "--";

fn join(before: &str, name: &str) -> String {
    if before.is_empty() || before == FLAG { format!("{before}{name}") } else { format!("{before}.{name}") }
}
