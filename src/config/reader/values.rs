//! Reads the values of a section.
//!
//! A function that returns `None` has noted the problem already.

use std::ops::RangeInclusive;
use std::time::Duration;

use serde_json::Value;
use toml::de::DeValue;

use super::{Located, Rank, Raw, Section, SourcePosition, Text, join};
use crate::config::key_doc::{KeyDoc, ValueKind};
use crate::config::nearest::nearest;
use crate::config::words::Word;
use crate::config::{scalar, units, wording};

impl<'a> Section<'a> {
    pub(in crate::config) fn boolean(&self, name: &str) -> Option<Located<bool>> {
        match self.find(name)? {
            (position, Raw::Toml(DeValue::Boolean(value))) => Some(Located { value, position }),
            (position, Raw::Toml(other)) => self.reader.wrong_kind(&position, ValueKind::Boolean, &other),
            (position, Raw::External(_)) => unreachable!("flags and variables give only texts, not {position:?}"),
        }
    }

    /// A whole number in a range, which is part of the type's; `why` is the reason for the range's bounds.
    pub(in crate::config) fn integer<T: TryFrom<usize>>(
        &self,
        name: &str,
        range: RangeInclusive<usize>,
        why: &str,
    ) -> Option<Located<T>> {
        let (position, number) = match self.find(name)? {
            (position, Raw::Toml(DeValue::Integer(number))) => (position, number),
            (position, Raw::Toml(other)) => return self.reader.wrong_kind(&position, ValueKind::Integer, &other),
            (position, Raw::External(_)) => unreachable!("flags and variables give only texts, not {position:?}"),
        };
        let value = usize::from_str_radix(number.as_str(), number.radix()).ok();
        let value = value.filter(|value| range.contains(value)).and_then(|value| T::try_from(value).ok());
        if let Some(value) = value {
            return Some(Located { value, position });
        }
        self.reader.problem(&position, format!("must be {} to {}: {why}", range.start(), range.end()));
        None
    }

    /// A text, a number or a boolean.
    pub(in crate::config) fn scalar(&self, name: &str) -> Option<Located<Value>> {
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
    pub(in crate::config) fn duration(&self, name: &str) -> Option<Located<Duration>> {
        self.parsed(name, units::parse_duration)
    }

    /// A duration that must not be zero.
    pub(in crate::config) fn duration_above_zero(&self, name: &str) -> Option<Located<Duration>> {
        self.parsed(name, |text| match units::parse_duration(text)? {
            Duration::ZERO => Err("is too short: this must take more than no time".into()),
            duration => Ok(duration),
        })
    }

    pub(in crate::config) fn text(&self, name: &str) -> Option<Text> {
        let (position, raw) = self.find(name)?;
        self.reader.text(position, raw, self.doc(name).kind)
    }

    /// A text as it is.
    pub(in crate::config) fn string(&self, name: &str) -> Option<Located<String>> {
        self.text(name).map(|text| Located { value: text.value, position: text.position })
    }

    /// A text, parsed; the error is the problem, beginning with a verb.
    pub(in crate::config) fn parsed<T>(
        &self,
        name: &str,
        parse: impl FnOnce(&str) -> Result<T, String>,
    ) -> Option<Located<T>> {
        self.reader.parse(self.text(name)?, parse)
    }

    /// A text, parsed; `None` for an empty one.
    pub(in crate::config) fn optional<T>(
        &self,
        name: &str,
        parse: impl FnOnce(&str) -> Result<T, String>,
    ) -> Option<Located<Option<T>>> {
        self.parsed(name, |text| if text.is_empty() { Ok(None) } else { parse(text).map(Some) })
    }

    /// A text that may hold a password, parsed; `None` for an empty one.
    pub(in crate::config) fn optional_concealed<T, E: Into<String>>(
        &self,
        name: &str,
        parse: impl FnOnce(&str) -> Result<T, E>,
    ) -> Option<Located<Option<T>>> {
        self.concealed(name, |text| if text.is_empty() { Ok(None) } else { parse(text).map(Some) })
    }

    /// A text that may hold a password, parsed.
    pub(in crate::config) fn concealed<T, E: Into<String>>(
        &self,
        name: &str,
        parse: impl FnOnce(&str) -> Result<T, E>,
    ) -> Option<Located<T>> {
        self.reader.parse_concealed(self.text(name)?, parse)
    }

    /// One of the words that the key is declared with.
    pub(in crate::config) fn choice<T: Word>(&self, name: &str) -> Option<Located<T>> {
        let text = self.text(name)?;
        let hint = if text.shown == text.value { nearest(&text.value, T::WORDS.iter().copied()) } else { None };
        self.reader.parse(text, |text| {
            let hint = hint.map_or(String::new(), |near| format!("; did you mean `{near}`?"));
            T::parse(text).ok_or_else(|| format!("is not known: write {}{hint}", wording::one_of(T::WORDS)))
        })
    }

    /// A list of texts, each parsed.
    pub(in crate::config) fn list<T>(
        &self,
        name: &str,
        mut parse: impl FnMut(&str) -> Result<T, String>,
    ) -> Option<Located<Vec<Located<T>>>> {
        let texts = self.texts(name)?;
        let expected = texts.value.len();
        let values: Vec<_> = texts.value.into_iter().filter_map(|text| self.reader.parse(text?, &mut parse)).collect();
        (values.len() == expected).then_some(Located { value: values, position: texts.position })
    }

    /// A list of texts, each parsed, without their positions.
    pub(in crate::config) fn values<T>(
        &self,
        name: &str,
        parse: impl FnMut(&str) -> Result<T, String>,
    ) -> Option<Located<Vec<T>>> {
        let list = self.list(name, parse)?;
        Some(Located { value: list.value.into_iter().map(|item| item.value).collect(), position: list.position })
    }

    /// Such a list that has no value twice.
    pub(in crate::config) fn distinct_values<T: PartialEq>(
        &self,
        name: &str,
        parse: impl FnMut(&str) -> Result<T, String>,
    ) -> Option<Located<Vec<T>>> {
        let list = self.list(name, parse)?;
        let mut values = Vec::new();
        for item in list.value {
            if values.contains(&item.value) {
                self.reader.problem(&item.position, "is listed a second time");
                return None;
            }
            values.push(item.value);
        }
        Some(Located { value: values, position: list.position })
    }

    /// A list of texts; `None` for each that could not be interpolated.
    pub(in crate::config) fn texts(&self, name: &str) -> Option<Located<Vec<Option<Text>>>> {
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

    pub(super) fn doc(&self, name: &str) -> &'static KeyDoc {
        let doc = self.keys.iter().find(|key| key.name == name);
        doc.unwrap_or_else(|| unreachable!("`{name}` is read and not declared"))
    }
}
