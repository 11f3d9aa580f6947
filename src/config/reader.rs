//! Reads a parsed file key by key, and keeps every problem with its place.
//!
//! A [`Section`] is a table as its reader sees it: what flags and variables say, then the file's own table, then the
//! table of defaults behind it, then the default of [`super::keys`]. All take the same way, so a default is checked like
//! a written value. A getter that returns `None` has already said what is wrong: readers go on to the next key, and give
//! up only when everything has been read.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::ops::RangeInclusive;
use std::time::Duration;

use toml::de::{DeTable, DeValue};

use super::interpolate::interpolate;
use super::keys::{self, KeyDoc, Kind};
use super::nearest::nearest;
use super::problem::{Problem, Problems, position};
use super::surroundings::Surroundings;
use super::{units, wording};

/// A file that is being read.
pub(super) struct Reader<'a> {
    /// `None` if flags and variables are all there is.
    file: Option<&'a str>,
    text: &'a str,
    surroundings: &'a dyn Surroundings,
    /// A set: a wrong value in `[defaults]` is met by every route, and said once.
    problems: RefCell<BTreeSet<Problem>>,
}

/// Where a value stands. The greater of two places is the one to blame when their values do not go together: the more
/// particular, or else the later one.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Place {
    rank: Rank,
    offset: usize,
    path: String,
}

/// How particular a value is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Rank {
    BuiltIn,
    Defaults,
    Own,
    Outside,
}

impl Place {
    /// Whether somebody wrote the value, rather than leave it at its default.
    pub(super) fn is_written(&self) -> bool {
        self.rank != Rank::BuiltIn
    }
}

/// A value and where it stands.
#[derive(Clone, Debug)]
pub(super) struct Found<T> {
    pub value: T,
    pub place: Place,
}

/// A text, filled in.
pub(super) struct Text {
    pub value: String,
    /// As it may be shown in a problem: before anything was filled in.
    pub shown: String,
    pub place: Place,
}

/// A table, and whatever stands in for the keys that it lacks.
pub(super) struct Section<'a> {
    reader: &'a Reader<'a>,
    keys: &'static [KeyDoc],
    /// Where a key is missed.
    place: Place,
    outside: Vec<Outside>,
    layers: Vec<Layer<'a>>,
}

/// What a flag or a variable says about a key.
pub(super) struct Outside {
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
    Outside(String),
    Toml(DeValue<'a>),
}

impl<'a> Reader<'a> {
    pub(super) fn new(file: Option<&'a str>, text: &'a str, surroundings: &'a dyn Surroundings) -> Self {
        Self { file, text, surroundings, problems: RefCell::default() }
    }

    /// The file's top table, all of whose keys, at any depth, are checked to be known.
    pub(super) fn top(&'a self, table: &'a DeTable<'a>) -> Section<'a> {
        self.check_names("", table, keys::TOP);
        let place = Place { rank: Rank::Own, offset: 0, path: String::new() };
        let layers = vec![Layer { rank: Rank::Own, path: String::new(), table }];
        Section { reader: self, keys: keys::TOP, place, outside: Vec::new(), layers }
    }

    pub(super) fn surroundings(&self) -> &'a dyn Surroundings {
        self.surroundings
    }

    /// Notes a problem.
    pub(super) fn problem(&self, place: &Place, message: impl Into<String>) {
        let file = self.file.filter(|_| place.rank != Rank::Outside);
        self.problems.borrow_mut().insert(Problem {
            file: file.map(Into::into),
            position: file.filter(|_| place.is_written()).map(|_| position(self.text, place.offset)),
            path: place.path.clone(),
            message: message.into(),
        });
    }

    /// Parses a text; the message says what is wrong with it, beginning with a verb.
    pub(super) fn parse<T>(&self, text: Text, parse: impl FnOnce(&str) -> Result<T, String>) -> Option<Found<T>> {
        match parse(&text.value) {
            Ok(value) => Some(Found { value, place: text.place }),
            Err(message) => {
                self.problem(&text.place, format!("`{}` {message}", text.shown));
                None
            }
        }
    }

    /// Everything that was wrong; `None` if nothing was.
    pub(super) fn into_problems(self) -> Option<Problems> {
        let problems = self.problems.into_inner();
        (!problems.is_empty()).then(|| Problems(problems.into_iter().collect()))
    }

    fn check_names(&self, before: &str, table: &DeTable<'_>, keys: &'static [KeyDoc]) {
        for (key, value) in table {
            let name: &str = key.get_ref();
            let path = join(before, name);
            match (keys.iter().find(|known| known.name == name).map(|known| known.kind), value.get_ref()) {
                (None, _) => {
                    let place = Place { rank: Rank::Own, offset: key.span().start, path };
                    self.problem(&place, wording::unknown_key(name, keys));
                }
                (Some(Kind::Table(keys)), DeValue::Table(table)) => self.check_names(&path, table, keys),
                (Some(Kind::Tables(keys)), DeValue::Array(tables)) => {
                    for (index, table) in tables.iter().enumerate() {
                        if let DeValue::Table(table) = table.get_ref() {
                            self.check_names(&format!("{path}[{index}]"), table, keys);
                        }
                    }
                }
                // What is wrong with the value is for its reader to say.
                (Some(_), _) => {}
            }
        }
    }

    fn wrong_kind<T>(&self, place: &Place, kind: Kind, value: &DeValue<'_>) -> Option<T> {
        self.problem(place, wording::wrong_kind(kind, value));
        None
    }

    fn text(&self, place: Place, raw: Raw<'_>, kind: Kind) -> Option<Text> {
        let written = match raw {
            Raw::Outside(value) => return Some(Text { shown: value.clone(), value, place }),
            Raw::Toml(DeValue::String(written)) => written.into_owned(),
            Raw::Toml(other) => return self.wrong_kind(&place, kind, &other),
        };
        match interpolate(&written, self.surroundings) {
            Ok(value) => Some(Text { value, shown: written, place }),
            Err(messages) => {
                messages.into_iter().for_each(|message| self.problem(&place, message));
                None
            }
        }
    }
}

impl<'a> Section<'a> {
    /// Puts what flags and variables say before what the file says.
    pub(super) fn with_outside(mut self, outside: Vec<Outside>) -> Self {
        self.outside = outside;
        self
    }

    pub(super) fn reader(&self) -> &'a Reader<'a> {
        self.reader
    }

    /// A table in this one. Each of its keys is looked for in every layer: what a route does not write in its `key`
    /// comes from the `key` of `[defaults]`.
    pub(super) fn table(&self, name: &str) -> Section<'a> {
        let Kind::Table(keys) = self.doc(name).kind else { unreachable!("`{name}` is declared as a table") };
        let mut layers = Vec::new();
        for layer in &self.layers {
            let Some(value) = layer.table.get(name) else { continue };
            let path = join(&layer.path, name);
            match value.get_ref() {
                DeValue::Table(table) => layers.push(Layer { rank: layer.rank, path, table }),
                other => {
                    let place = Place { rank: layer.rank, offset: value.span().start, path };
                    self.reader.wrong_kind::<()>(&place, Kind::Table(keys), other);
                }
            }
        }
        let place = Place { path: join(&self.place.path, name), ..self.place.clone() };
        Section { reader: self.reader, keys, place, outside: Vec::new(), layers }
    }

    /// A section that has nothing, to stand behind tables without defaults of the file's own.
    pub(super) fn nothing(&self) -> Section<'a> {
        let place = Place { rank: Rank::BuiltIn, offset: 0, path: String::new() };
        Section { reader: self.reader, keys: &[], place, outside: Vec::new(), layers: Vec::new() }
    }

    /// How many tables a list has, right or wrong.
    pub(super) fn count(&self, name: &str) -> usize {
        let lists = self.layers.iter().filter_map(|layer| layer.table.get(name)?.get_ref().as_array());
        lists.map(|list| list.len()).sum()
    }

    /// The tables of a list, each with `behind` behind it.
    pub(super) fn tables(&self, name: &str, behind: &Section<'a>) -> Vec<Section<'a>> {
        let Kind::Tables(keys) = self.doc(name).kind else { unreachable!("`{name}` is declared as tables") };
        let mut sections = Vec::new();
        for layer in &self.layers {
            let Some(list) = layer.table.get(name) else { continue };
            let path = join(&layer.path, name);
            let place = Place { rank: layer.rank, offset: list.span().start, path: path.clone() };
            let DeValue::Array(list) = list.get_ref() else {
                self.reader.wrong_kind::<()>(&place, Kind::Tables(keys), list.get_ref());
                continue;
            };
            for (index, item) in list.iter().enumerate() {
                let path = format!("{path}[{index}]");
                let place = Place { rank: layer.rank, offset: item.span().start, path };
                let DeValue::Table(table) = item.get_ref() else {
                    self.reader.wrong_kind::<()>(&place, Kind::Table(keys), item.get_ref());
                    continue;
                };
                let mut layers = vec![Layer { rank: layer.rank, path: place.path.clone(), table }];
                layers.extend(behind.layers.iter().cloned());
                sections.push(Section { reader: self.reader, keys, place, outside: Vec::new(), layers });
            }
        }
        sections
    }

    /// This section as what stands behind others.
    pub(super) fn into_defaults(mut self) -> Self {
        self.layers.iter_mut().for_each(|layer| layer.rank = Rank::Defaults);
        self
    }

    /// A table that nobody wrote, with `self` behind it.
    pub(super) fn behind_built_in(&self, keys: &'static [KeyDoc], path: &str, table: &'a DeTable<'a>) -> Self {
        let place = Place { rank: Rank::BuiltIn, offset: 0, path: path.into() };
        let mut layers = vec![Layer { rank: Rank::BuiltIn, path: path.into(), table }];
        layers.extend(self.layers.iter().cloned());
        Section { reader: self.reader, keys, place, outside: Vec::new(), layers }
    }

    pub(super) fn boolean(&self, name: &str) -> Option<Found<bool>> {
        match self.find(name)? {
            (place, Raw::Toml(DeValue::Boolean(value))) => Some(Found { value, place }),
            (place, Raw::Toml(other)) => self.reader.wrong_kind(&place, Kind::Boolean, &other),
            (place, Raw::Outside(_)) => unreachable!("only texts come from outside, not {place:?}"),
        }
    }

    /// A whole number in a range; `why` tells the reason for the range's end.
    pub(super) fn integer(&self, name: &str, range: RangeInclusive<usize>, why: &str) -> Option<Found<usize>> {
        let (place, number) = match self.find(name)? {
            (place, Raw::Toml(DeValue::Integer(number))) => (place, number),
            (place, Raw::Toml(other)) => return self.reader.wrong_kind(&place, Kind::Integer, &other),
            (place, Raw::Outside(_)) => unreachable!("only texts come from outside, not {place:?}"),
        };
        let value = usize::from_str_radix(number.as_str(), number.radix()).ok();
        if let Some(value) = value.filter(|value| range.contains(value)) {
            return Some(Found { value, place });
        }
        self.reader.problem(&place, format!("must be {} to {}: {why}", range.start(), range.end()));
        None
    }

    /// A duration, which may be zero.
    pub(super) fn duration(&self, name: &str) -> Option<Found<Duration>> {
        self.parsed(name, units::duration)
    }

    /// A duration that would switch something off if it were zero.
    pub(super) fn duration_above_zero(&self, name: &str) -> Option<Found<Duration>> {
        self.parsed(name, |text| match units::duration(text)? {
            Duration::ZERO => Err("is too short: this must take more than no time".into()),
            duration => Ok(duration),
        })
    }

    pub(super) fn text(&self, name: &str) -> Option<Text> {
        let (place, raw) = self.find(name)?;
        self.reader.text(place, raw, self.doc(name).kind)
    }

    /// A text, parsed; the message of the error says what is wrong with it, beginning with a verb.
    pub(super) fn parsed<T>(&self, name: &str, parse: impl FnOnce(&str) -> Result<T, String>) -> Option<Found<T>> {
        self.reader.parse(self.text(name)?, parse)
    }

    /// One of the words that the key is declared with.
    pub(super) fn choice<T>(&self, name: &str, meaning: impl FnOnce(&str) -> Option<T>) -> Option<Found<T>> {
        let Kind::Choice(words) = self.doc(name).kind else { unreachable!("`{name}` is declared as a choice") };
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
    ) -> Option<Found<Vec<Found<T>>>> {
        let texts = self.texts(name)?;
        let expected = texts.value.len();
        let values: Vec<_> = texts.value.into_iter().filter_map(|text| self.reader.parse(text?, &mut parse)).collect();
        (values.len() == expected).then_some(Found { value: values, place: texts.place })
    }

    /// A list of texts; `None` for each that could not be filled in.
    pub(super) fn texts(&self, name: &str) -> Option<Found<Vec<Option<Text>>>> {
        let (place, list) = match self.find(name)? {
            (place, Raw::Toml(DeValue::Array(list))) => (place, list),
            (place, Raw::Toml(other)) => return self.reader.wrong_kind(&place, Kind::Texts, &other),
            (place, Raw::Outside(_)) => unreachable!("no list comes from outside, not {place:?}"),
        };
        let mut texts = Vec::new();
        for (index, item) in list.into_iter().enumerate() {
            let offset = if place.is_written() { item.span().start } else { 0 };
            let place = Place { rank: place.rank, offset, path: format!("{}[{index}]", place.path) };
            texts.push(self.reader.text(place, Raw::Toml(item.into_inner()), Kind::Text));
        }
        Some(Found { value: texts, place })
    }

    fn find(&self, name: &str) -> Option<(Place, Raw<'a>)> {
        let doc = self.doc(name);
        if let Some(outside) = self.outside.iter().find(|outside| outside.key == name) {
            let place = Place { rank: Rank::Outside, offset: 0, path: outside.from.into() };
            return Some((place, Raw::Outside(outside.value.clone())));
        }
        for layer in &self.layers {
            if let Some(value) = layer.table.get(name) {
                let path = join(&layer.path, name);
                let place = Place { rank: layer.rank, offset: value.span().start, path };
                return Some((place, Raw::Toml(value.get_ref().clone())));
            }
        }
        let path = join(&self.place.path, name);
        let Some(default) = doc.default else {
            let place = Place { path, ..self.place.clone() };
            self.reader.problem(&place, format!("is missing: {}", doc.about));
            return None;
        };
        let default = DeValue::parse(default).expect("defaults are TOML: each is parsed by a test");
        Some((Place { rank: Rank::BuiltIn, offset: 0, path }, Raw::Toml(default.into_inner())))
    }

    fn doc(&self, name: &str) -> &'static KeyDoc {
        let doc = self.keys.iter().find(|key| key.name == name);
        doc.unwrap_or_else(|| unreachable!("`{name}` is asked for and not declared"))
    }
}

fn join(before: &str, name: &str) -> String {
    if before.is_empty() { name.into() } else { format!("{before}.{name}") }
}
