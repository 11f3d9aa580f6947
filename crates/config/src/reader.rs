//! Reads parsed files key by key, and collects every problem with its position.
//!
//! A [`Section`] is a table with its fallbacks. A key is looked up in this order: flags and variables, the file's own
//! table, the file's defaults for it, the default of its declaration. A preset, of a dialect or of a kind, comes behind
//! the table that names it. All values are parsed by the same code, so a default is checked like a written value. A
//! value with a problem is reported and replaced by its default, so that everything else is read; the file is refused
//! then.

use std::borrow::Cow;
use std::cell::{OnceCell, RefCell};
use std::collections::BTreeSet;
use std::io;
use std::path::Path;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::environment::Environment;
use super::interpolate::{
    STAND_IN, STAND_INS, find_unfilled_placeholder, interpolate, is_one_placeholder, place_files,
};
use super::key_doc::{KeyDoc, ValueKind};
use super::messages;
use super::problem::{ConfigProblem, ConfigProblems};
use super::source_texts::SourceTexts;
use oncegate_settings::{SourceFiles, ValueOrigin, ValueOrigins};
use oncegate_trust::tls::Authorities;

mod values;

/// The reader of a configuration's files.
pub(super) struct ConfigReader<'a> {
    texts: &'a SourceTexts,
    /// The tables of a file, each with its place in words; the top is the first.
    tables: &'static [DeclaredTable],
    environment: &'a dyn Environment,
    /// The values of flags and variables.
    external: Vec<ExternalValue>,
    /// The values of `[defaults]` that flags give.
    flag_defaults: DeTable<'a>,
    /// A set: every route reads a wrong value in `[defaults]`, and the problem is reported once.
    problems: RefCell<BTreeSet<ConfigProblem>>,
    /// The paths of the values that were replaced by their defaults.
    unreadable: RefCell<BTreeSet<String>>,
    files: RefCell<SourceFiles>,
    authorities: OnceCell<Authorities>,
}

/// The place of a table in words, and its options.
pub(super) type DeclaredTable = (&'static str, &'static [KeyDoc]);

/// The position of a value. Where two values contradict each other, the problem is reported at the greater position:
/// the more specific one, or else the later one. It is shown as the key, flag or variable.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, derive_more::Display)]
#[display("{path}")]
pub(super) struct SourcePosition {
    rank: Rank,
    offset: usize,
    path: String,
}

/// The specificity of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Rank {
    BuiltIn,
    /// Of the key that names it.
    Preset(&'static str),
    Defaults,
    Own,
    External,
}

impl SourcePosition {
    /// Whether the value was written, rather than left at its default or at a preset.
    pub(super) fn is_written(&self) -> bool {
        !matches!(self.rank, Rank::BuiltIn | Rank::Preset(_))
    }

    /// Whether the value is the built-in default.
    pub(super) fn is_built_in(&self) -> bool {
        self.rank == Rank::BuiltIn
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
#[derive(Clone)]
pub(super) struct Section<'a> {
    reader: &'a ConfigReader<'a>,
    keys: &'static [KeyDoc],
    /// The position at which a missing key is reported.
    position: SourcePosition,
    layers: Vec<Layer<'a>>,
}

/// The value that a flag or a variable gives a key.
pub(super) struct ExternalValue {
    /// The key with its tables, such as `store.url`.
    pub path: &'static str,
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

impl<'a> ConfigReader<'a> {
    pub fn new(
        texts: &'a SourceTexts,
        tables: &'static [DeclaredTable],
        environment: &'a dyn Environment,
        external: Vec<ExternalValue>,
        flag_defaults: DeTable<'a>,
    ) -> Self {
        let (problems, unreadable, files) =
            (RefCell::default(), RefCell::default(), RefCell::new(texts.included.clone()));
        let authorities = OnceCell::new();
        Self { texts, tables, environment, external, flag_defaults, problems, unreadable, files, authorities }
    }

    /// The file's top table. Checks that all keys, at any depth, are known.
    pub fn top(&'a self, table: &'a DeTable<'a>) -> Section<'a> {
        let (_, keys) = self.tables[0];
        self.check_names("", table, keys);
        let position = SourcePosition { rank: Rank::Own, offset: 0, path: String::new() };
        let layers = vec![Layer { rank: Rank::Own, path: String::new(), table }];
        Section { reader: self, keys, position, layers }
    }

    pub fn texts(&self) -> &'a SourceTexts {
        self.texts
    }

    pub fn environment(&self) -> &'a dyn Environment {
        self.environment
    }

    /// Notes a problem.
    pub fn problem(&self, position: &SourcePosition, message: impl Into<String>) {
        let file = self.texts.name_at(position.offset).filter(|_| position.rank != Rank::External);
        self.problems.borrow_mut().insert(ConfigProblem {
            file: file.map(Into::into),
            position: file.filter(|_| position.is_written()).map(|_| self.texts.line_and_column(position.offset)),
            path: position.path.clone(),
            message: message.into(),
        });
    }

    /// The file and the line of a value.
    pub fn show(&self, position: &SourcePosition) -> String {
        let (line, _) = self.texts.line_and_column(position.offset);
        format!("{}:{line}", self.texts.name_at(position.offset).unwrap_or_default())
    }

    /// The authorities of the system, read when they are needed first.
    pub fn system_authorities(&self) -> &Authorities {
        self.authorities.get_or_init(|| self.environment.authorities())
    }

    /// The authorities of the system, if they were read.
    pub fn read_authorities(&self) -> Option<&Authorities> {
        self.authorities.get()
    }

    /// The folder that relative paths in a value belong to: that of the file, so that a start from another working
    /// directory finds the same place. `None` for a value of a flag, a variable or a default: its paths belong to the
    /// working directory.
    pub fn folder(&self, position: &SourcePosition) -> Option<&'a Path> {
        let is_of_file = position.is_written() && position.rank != Rank::External;
        Path::new(self.texts.name_at(position.offset).filter(|_| is_of_file)?).parent()
    }

    /// Reads a file and remembers its version.
    pub fn read_file(&self, path: &Path) -> io::Result<String> {
        let text = self.environment.read(path)?;
        self.files.borrow_mut().add(path, text.as_bytes());
        Ok(text)
    }

    /// All files that were read.
    pub fn files(&self) -> SourceFiles {
        self.files.borrow().clone()
    }

    /// Parses a text; the error is the problem, beginning with a verb. A text that may hold a password is not shown.
    fn parse<T>(&self, text: &Text, is_shown: bool, parse: impl Fn(&str) -> Result<T, String>) -> Option<T> {
        let shown = if is_shown { format!("`{}` ", text.shown) } else { String::new() };
        let parsed = parse(&text.value);
        // The value is elsewhere, and some value of its form is right.
        let is_elsewhere = text.value.contains(STAND_IN) && is_one_placeholder(&text.shown);
        let stands_in = if is_elsewhere { STAND_INS.iter().find_map(|value| parse(value).ok()) } else { None };
        stands_in.map_or(parsed, Ok).map_err(|message| self.problem(&text.position, format!("{shown}{message}"))).ok()
    }

    /// Whether a value was replaced by its default.
    pub fn is_unreadable(&self) -> bool {
        !self.unreadable.borrow().is_empty()
    }

    /// All problems; `None` if there are none.
    pub fn into_problems(self) -> Option<ConfigProblems> {
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
                    let earlier = messages::earlier_place(name, table, keys);
                    let message = earlier.unwrap_or_else(|| messages::unknown_key(name, keys, self.tables));
                    self.problem(&position, message);
                }
                (Some(ValueKind::Table(keys)), DeValue::Table(table)) => self.check_names(&path, table, keys),
                (Some(ValueKind::Named(keys)), DeValue::Table(named)) => {
                    for (name, table) in named {
                        if let DeValue::Table(table) = table.get_ref() {
                            self.check_names(&join(&path, name.get_ref()), table, keys);
                        }
                    }
                }
                (Some(ValueKind::Tables(keys)), DeValue::Array(tables)) => {
                    for (index, table) in self.texts.by_file(tables) {
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
        self.problem(position, messages::wrong_kind(kind, value));
        None
    }

    fn text(&self, position: SourcePosition, value: DeValue<'_>, kind: ValueKind) -> Option<Text> {
        let written = match value {
            DeValue::String(written) => written.into_owned(),
            other => return self.wrong_kind(&position, kind, &other),
        };
        let is_interpolated = !self.external.iter().any(|external| external.from == position.path);
        let written = self.folder(&position).map_or_else(|| written.clone(), |folder| place_files(&written, folder));
        let value = match is_interpolated {
            true => interpolate(&written, self.environment, &|path| self.read_file(path)),
            false => match find_unfilled_placeholder(&written) {
                Some(problem) => Err(vec![problem.into()]),
                None => Ok(written.clone()),
            },
        };
        match value {
            Ok(value) => Some(Text { value, shown: written, is_interpolated, position }),
            Err(messages) => {
                messages.into_iter().for_each(|message| self.problem(&position, message));
                None
            }
        }
    }
}

impl<'a> Section<'a> {
    pub fn reader(&self) -> &'a ConfigReader<'a> {
        self.reader
    }

    /// Which of the files has it.
    pub fn source_file(&self) -> usize {
        self.reader.texts.file_at(self.position.offset)
    }

    /// Whether a pattern has included that file.
    pub fn is_of_team(&self) -> bool {
        self.reader.texts.is_of_team(self.position.offset)
    }

    /// Whether a key is written, in whatever layer.
    pub fn has(&self, name: &str) -> bool {
        self.find(name).1.is_some()
    }

    /// A table in this one. Each of its keys is looked up in every layer: a route whose `key` lacks a field takes that
    /// field from the `key` of `[defaults]`.
    pub fn table(&self, name: &str) -> Section<'a> {
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
        Section { reader: self.reader, keys, position, layers }
    }

    /// The place of the first table that has a key, in the order in which they are looked up; `None` where none has it.
    pub fn first_layer(&self, name: &str) -> Option<usize> {
        self.layers.iter().position(|layer| layer.table.contains_key(name))
    }

    /// The number of tables in a list, with and without problems.
    pub fn count(&self, name: &str) -> usize {
        let lists = self.layers.iter().filter_map(|layer| layer.table.get(name)?.get_ref().as_array());
        lists.map(|list| list.len()).sum()
    }

    /// The tables of the first list of this name; none if there is no list.
    pub fn tables(&self, name: &str) -> Vec<Section<'a>> {
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
        for (index, item) in self.reader.texts.by_file(list) {
            let path = format!("{path}[{index}]");
            let position = SourcePosition { rank: layer.rank, offset: item.span().start, path };
            let DeValue::Table(table) = item.get_ref() else {
                self.reader.wrong_kind::<()>(&position, ValueKind::Table(keys), item.get_ref());
                continue;
            };
            let layers = vec![Layer { rank: layer.rank, path: position.path.clone(), table }];
            sections.push(Section { reader: self.reader, keys, position, layers });
        }
        sections
    }

    /// The tables with a name, parsed, in each table of this name, in the order in which keys are looked up.
    pub fn named<T>(&self, name: &str, parse: impl Fn(&str) -> Result<T, String>) -> Vec<Vec<(T, Section<'a>)>> {
        let ValueKind::Named(keys) = self.doc(name).kind else { unreachable!("`{name}` is declared as named tables") };
        let mut tables = Vec::new();
        for layer in &self.layers {
            let Some(value) = layer.table.get(name) else { continue };
            let path = join(&layer.path, name);
            let at = |offset, path| SourcePosition { rank: layer.rank, offset, path };
            let DeValue::Table(table) = value.get_ref() else {
                self.reader.wrong_kind::<()>(&at(value.span().start, path), self.doc(name).kind, value.get_ref());
                continue;
            };
            let mut named = Vec::new();
            for (name, value) in table {
                let position = at(value.span().start, join(&path, name.get_ref()));
                let DeValue::Table(table) = value.get_ref() else {
                    self.reader.wrong_kind::<()>(&position, ValueKind::Table(keys), value.get_ref());
                    continue;
                };
                let layers = vec![Layer { rank: layer.rank, path: position.path.clone(), table }];
                match parse(name.get_ref()) {
                    Ok(name) => named.push((name, Section { reader: self.reader, keys, position, layers })),
                    Err(message) => self.reader.problem(&position, message),
                }
            }
            tables.push(named);
        }
        tables
    }

    /// The fields of the first table of this name, parsed.
    pub fn fields<T>(&self, name: &str, parse: impl Fn(&str, &str) -> Result<T, String>) -> Vec<T> {
        let first = self.layers.iter().find_map(|layer| Some((layer, layer.table.get(name)?)));
        let Some((layer, value)) = first else { return Vec::new() };
        let path = join(&layer.path, name);
        let at = |offset, path| SourcePosition { rank: layer.rank, offset, path };
        let DeValue::Table(table) = value.get_ref() else {
            self.reader.wrong_kind::<()>(&at(value.span().start, path), ValueKind::Fields, value.get_ref());
            return Vec::new();
        };
        let read = |(name, value): (&Spanned<Cow<'_, str>>, &Spanned<DeValue<'_>>)| {
            let position = at(value.span().start, join(&path, name.get_ref()));
            let text = self.reader.text(position, value.get_ref().clone(), ValueKind::Concealed)?;
            self.reader.parse(&text, false, |value| parse(name.get_ref(), value))
        };
        table.iter().filter_map(read).collect()
    }

    /// Turns this section into the fallback of others.
    pub fn into_defaults(mut self) -> Self {
        self.layers.iter_mut().for_each(|layer| layer.rank = Rank::Defaults);
        self
    }

    /// Puts the defaults that flags give before this section's own values.
    pub fn with_flags(mut self) -> Self {
        let table = &self.reader.flag_defaults;
        self.layers.insert(0, Layer { rank: Rank::External, path: FLAG.into(), table });
        self
    }

    /// Notes the places of the values that are written for keys of this section. `own` is the place of its own table.
    pub fn note_origins(&self, own: ValueOrigin, origins: &mut ValueOrigins) {
        for external in &self.reader.external {
            if let Some(key) = external.path.strip_prefix(&*self.position.path) {
                origins.note(key.to_owned(), ValueOrigin::External);
            }
        }
        for layer in &self.layers {
            let origin = match layer.rank {
                Rank::BuiltIn => continue,
                Rank::Preset(key) => ValueOrigin::Preset(key),
                Rank::Defaults => ValueOrigin::Defaults,
                Rank::Own => own,
                Rank::External => ValueOrigin::External,
            };
            note_table(origins, "", (layer.table, self.keys), origin);
        }
    }

    /// Puts a preset behind the first table that has this key, or behind all tables where none has it.
    pub fn with_preset(mut self, key: &'static str, preset: &'a DeTable<'a>) -> Self {
        let named = self.layers.iter().position(|layer| layer.table.contains_key(key));
        let at = named.map_or(self.layers.len(), |index| index + 1);
        let path = self.position.path.clone();
        self.layers.insert(at, Layer { rank: Rank::Preset(key), path, table: preset });
        self
    }

    /// Puts another section of the same keys behind this one.
    pub fn with_fallback(mut self, fallback: &Section<'a>) -> Self {
        self.layers.extend(fallback.layers.iter().cloned());
        self
    }

    /// A built-in table, with this section as its fallback.
    pub fn with_built_in(&self, keys: &'static [KeyDoc], path: &str, table: &'a DeTable<'a>) -> Self {
        let position = SourcePosition { rank: Rank::BuiltIn, offset: 0, path: path.into() };
        let mut layers = vec![Layer { rank: Rank::BuiltIn, path: path.into(), table }];
        layers.extend(self.layers.iter().cloned());
        Section { reader: self.reader, keys, position, layers }
    }
}

/// Notes the keys of a table at this path, and of the tables in it. A table with a name counts as a whole.
fn note_table(
    origins: &mut ValueOrigins,
    before: &str,
    (table, keys): (&DeTable<'_>, &'static [KeyDoc]),
    origin: ValueOrigin,
) {
    for (key, value) in table {
        let path = join(before, key.get_ref());
        let known = keys.iter().find(|known| known.name == key.get_ref()).map(|known| known.kind);
        match (value.get_ref(), known) {
            (DeValue::Table(table), Some(ValueKind::Table(keys))) => note_table(origins, &path, (table, keys), origin),
            (DeValue::Table(table), _) => {
                table.keys().for_each(|name| origins.note(join(&path, name.get_ref()), origin))
            }
            _ => origins.note(path, origin),
        }
    }
}

/// The path of the tables that hold flags.
const FLAG: &str = "--";

fn join(before: &str, name: &str) -> String {
    if before.is_empty() || before == FLAG { format!("{before}{name}") } else { format!("{before}.{name}") }
}
