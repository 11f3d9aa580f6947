//! The texts of a configuration: its file, and the files that this includes.
//!
//! An offset counts through all texts, one behind the other, so that a value's place also says its file.

use std::path::{Path, PathBuf};

use toml::Spanned;
use toml::de::{DeArray, DeTable, DeValue};

use super::environment::Environment;
use super::messages::syntax_hint;
use super::problem::{ConfigProblem, ConfigProblems, line_and_column};
use oncegate_settings::SourceFiles;

/// The tables that a file may have which a pattern with `*` includes: the base decides everything else.
const OF_TEAMS: [&str; 4] = ["consumers", "events", "routes", "services"];

/// The texts, the file's own first.
#[derive(Default)]
pub(super) struct SourceTexts {
    files: Vec<SourceText>,
    /// The files and patterns that are included.
    pub included: SourceFiles,
}

struct SourceText {
    /// The file as a problem names it; `None` where the values come from flags and variables alone.
    name: Option<String>,
    /// Where the text begins among all.
    begin: usize,
    text: String,
    is_of_team: bool,
}

impl SourceTexts {
    /// One text without a file.
    pub fn of_text(text: &str) -> Self {
        let mut texts = Self::default();
        texts.add(None, text, false);
        texts
    }

    /// Reads a file and those that it includes.
    pub fn read(file: Option<&Path>, environment: &dyn Environment) -> Result<Self, ConfigProblems> {
        let Some(path) = file else { return Ok(Self::of_text("")) };
        let mut texts = Self::default();
        texts.read_file(path, false, environment)?;
        for pattern in texts.patterns()? {
            let whole = path.parent().unwrap_or(Path::new("")).join(&pattern);
            let is_of_team = pattern.contains('*');
            let refused = |why: String| texts.problem(0, None, format!("include: `{pattern}` {why}"));
            let found: Vec<PathBuf> = match is_of_team {
                true => environment.list(&whole).map_err(|error| refused(format!("cannot be read: {error}")))?,
                false => vec![whole.clone()],
            };
            if found.is_empty() {
                return Err(refused("matches no file".into()));
            }
            let first = texts.files.len();
            for found in &found {
                texts.read_file(found, is_of_team, environment)?;
            }
            // What was read, and not what is there now.
            let read = texts.files[first..].iter().map(|file| file.text.as_bytes());
            let read = found.iter().map(|path| &**path).zip(read);
            match is_of_team {
                true => texts.included.add_pattern(&whole, read),
                false => read.for_each(|(path, text)| texts.included.add(path, text)),
            }
        }
        Ok(texts)
    }

    /// The files that the first one includes. What is no text is reported with the other options.
    fn patterns(&self) -> Result<Vec<String>, ConfigProblems> {
        let table = self.parse_file(0)?;
        let text = |value: &Spanned<DeValue<'_>>| value.get_ref().as_str().map(str::to_owned);
        Ok(match table.get("include") {
            Some(list) if list.get_ref().is_array() => {
                list.get_ref().as_array().into_iter().flatten().filter_map(text).collect()
            }
            one => one.and_then(text).into_iter().collect(),
        })
    }

    fn read_file(
        &mut self,
        path: &Path,
        is_of_team: bool,
        environment: &dyn Environment,
    ) -> Result<(), ConfigProblems> {
        let name = path.display().to_string();
        match environment.read(path) {
            Ok(text) => self.add(Some(name), &text, is_of_team),
            Err(error) => {
                self.add(Some(name), "", is_of_team);
                return Err(self.problem(self.files.len() - 1, None, format!("cannot be read: {error}")));
            }
        }
        Ok(())
    }

    fn add(&mut self, name: Option<String>, text: &str, is_of_team: bool) {
        let begin = self.files.last().map_or(0, |last| last.begin + last.text.len() + 1);
        self.files.push(SourceText { name, begin, text: text.to_owned(), is_of_team });
    }

    /// The name of the file itself.
    pub fn name(&self) -> Option<&str> {
        self.files[0].name.as_deref()
    }

    pub fn has_included(&self) -> bool {
        self.files.len() > 1
    }

    /// The items of a list, each with its number within its file.
    pub fn by_file<'l, 'i>(
        &self,
        list: &'l DeArray<'i>,
    ) -> impl Iterator<Item = (usize, &'l Spanned<DeValue<'i>>)> + use<'_, 'l, 'i> {
        let mut last = (0, 0);
        list.iter().map(move |item| {
            let file = self.file_at(item.span().start);
            last = if file == last.0 { (file, last.1 + 1) } else { (file, 1) };
            (last.1 - 1, item)
        })
    }

    /// Whether a pattern has included the file of this offset.
    pub fn is_of_team(&self, offset: usize) -> bool {
        self.files[self.file_at(offset)].is_of_team
    }

    /// The number of the file that has this offset.
    pub fn file_at(&self, offset: usize) -> usize {
        self.files.partition_point(|file| file.begin <= offset).saturating_sub(1)
    }

    pub fn name_at(&self, offset: usize) -> Option<&str> {
        self.files[self.file_at(offset)].name.as_deref()
    }

    pub fn line_and_column(&self, offset: usize) -> (usize, usize) {
        let SourceText { begin, text, .. } = &self.files[self.file_at(offset)];
        line_and_column(text, offset.saturating_sub(*begin))
    }

    /// A problem of one of the files as a whole.
    fn problem(&self, file: usize, offset: Option<usize>, message: String) -> ConfigProblems {
        let position = offset.map(|offset| self.line_and_column(offset));
        let file = self.files[file].name.as_deref().map(Into::into);
        ConfigProblems(vec![ConfigProblem { file, position, path: String::new(), message }])
    }

    fn parse_file(&self, file: usize) -> Result<DeTable<'_>, ConfigProblems> {
        let SourceText { begin, text, .. } = &self.files[file];
        let parsed = DeTable::parse(text).map(|table| place_table(table.into_inner(), *begin));
        parsed.map_err(|error| {
            // Not the error's own `Display`, which prints the line: there may be a password in it.
            let message = error.message().replace('\n', ", ");
            let hint = error.span().and_then(|span| syntax_hint(text, span.start));
            let message = hint.map_or(message.clone(), |hint| format!("{message} ({hint})"));
            self.problem(file, error.span().map(|span| begin + span.start), message)
        })
    }

    /// The tables of all files as one. What is a list of tables there has those of each; any other key is in one file.
    pub fn parse(&self) -> Result<DeTable<'_>, ConfigProblems> {
        let mut merged = DeTable::new();
        for (number, file) in self.files.iter().enumerate() {
            for (key, value) in self.parse_file(number)? {
                let refused =
                    |why: String| self.problem(number, Some(key.span().start), format!("{}: {why}", key.get_ref()));
                let name: &str = key.get_ref();
                if number > 0 && name == "include" {
                    return Err(refused("an included file includes nothing".into()));
                }
                if file.is_of_team && !OF_TEAMS.contains(&name) {
                    let of_teams = OF_TEAMS.map(|table| format!("`[[{table}]]`")).join(", ");
                    return Err(refused(format!(
                        "belongs to the file that includes this one: here are {of_teams} alone"
                    )));
                }
                match (merged.get_mut(name).map(Spanned::get_mut), value.get_ref()) {
                    (None, _) => drop(merged.insert(key, value)),
                    (Some(DeValue::Array(before)), DeValue::Array(_)) if is_list_of_tables(before) => {
                        if let DeValue::Array(more) = value.into_inner() {
                            more.into_iter().for_each(|item| before.push(item));
                        }
                    }
                    (Some(_), _) => return Err(refused("is in another of these files already".into())),
                }
            }
        }
        Ok(merged)
    }
}

/// The table of a file that begins there among all texts.
fn place_table(table: DeTable<'_>, begin: usize) -> DeTable<'_> {
    table.into_iter().map(|(key, value)| (place(key, begin, |key, _| key), place(value, begin, place_value))).collect()
}

fn place<T>(value: Spanned<T>, begin: usize, inside: impl Fn(T, usize) -> T) -> Spanned<T> {
    let span = value.span();
    Spanned::new(begin + span.start..begin + span.end, inside(value.into_inner(), begin))
}

fn place_value(value: DeValue<'_>, begin: usize) -> DeValue<'_> {
    match value {
        DeValue::Array(list) => DeValue::Array(list.into_iter().map(|item| place(item, begin, place_value)).collect()),
        DeValue::Table(table) => DeValue::Table(place_table(table, begin)),
        other => other,
    }
}

fn is_list_of_tables(list: &DeArray<'_>) -> bool {
    list.iter().all(|item| item.get_ref().is_table())
}
