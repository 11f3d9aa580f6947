//! YAML, as far as a description of an API needs it.
//!
//! Scalars stay the texts that they are written as (`1`, `on` and `no` are nobody's numbers and truths here), but for
//! what is plainly nothing. Anchors and merge keys are followed, within limits.

use std::collections::HashMap;

use saphyr_parser::{Event, Parser, ScalarStyle};
use serde_json::{Map, Value};

/// As serde_json has it: what reads a value goes down into it.
const DEPTH_MAX: usize = 128;

/// Aliases can make much of little: this is more than anybody writes, and still fits into memory.
const NODES_MAX: usize = 4_000_000;

/// Reads the one document of a text.
pub(super) fn parse(text: &str) -> Result<Value, String> {
    let mut builder = Builder::default();
    for event in Parser::new_from_str(text) {
        let (event, span) = event.map_err(|error| format!("line {}: {}", error.marker().line(), error.info()))?;
        builder.take(event).map_err(|error| format!("line {}: {error}", span.start.line()))?;
    }
    Ok(builder.whole.unwrap_or_default())
}

#[derive(Default)]
struct Builder {
    whole: Option<Value>,
    open: Vec<Open>,
    anchors: HashMap<usize, Value>,
    nodes: usize,
}

/// A list or a mapping that has begun, and its anchor; 0 for none.
struct Open {
    anchor: usize,
    content: Content,
}

enum Content {
    List(Vec<Value>),
    Mapping(Mapping),
}

#[derive(Default)]
struct Mapping {
    entries: Map<String, Value>,
    /// The key whose value is to come.
    key: Option<String>,
    /// What merge keys bring in.
    merged: Vec<Value>,
}

impl Builder {
    fn take(&mut self, event: Event<'_>) -> Result<(), String> {
        match event {
            Event::Alias(anchor) => {
                let value = self.anchors.get(&anchor).cloned().ok_or("an alias for what it stands in")?;
                self.count(&value)?;
                self.put(value, 0)
            }
            Event::Scalar(text, style, anchor, _) => {
                let is_nothing = style == ScalarStyle::Plain && matches!(&*text, "" | "~" | "null" | "Null" | "NULL");
                let awaits_key = match self.open.last().map(|open| &open.content) {
                    Some(Content::Mapping(mapping)) => mapping.key.is_none(),
                    _ => false,
                };
                match is_nothing && !awaits_key {
                    true => self.put(Value::Null, anchor),
                    false => self.put(Value::String(text.into_owned()), anchor),
                }
            }
            Event::SequenceStart(anchor, _) => self.open(anchor, Content::List(Vec::new())),
            Event::MappingStart(anchor, _) => self.open(anchor, Content::Mapping(Mapping::default())),
            Event::SequenceEnd | Event::MappingEnd => {
                let Open { anchor, content } = self.open.pop().expect("the parser ends what has begun");
                let value = match content {
                    Content::List(list) => Value::Array(list),
                    Content::Mapping(mapping) => mapping.end()?,
                };
                self.put(value, anchor)
            }
            Event::DocumentStart(_) if self.whole.is_some() => Err("a second document begins".into()),
            Event::DocumentStart(_) | Event::DocumentEnd | Event::Nothing | Event::StreamEnd | Event::StreamStart => {
                Ok(())
            }
        }
    }

    fn open(&mut self, anchor: usize, content: Content) -> Result<(), String> {
        self.open.push(Open { anchor, content });
        if self.open.len() > DEPTH_MAX { Err("nested too deeply".into()) } else { Ok(()) }
    }

    /// Puts a value where it belongs.
    fn put(&mut self, value: Value, anchor: usize) -> Result<(), String> {
        self.nodes += 1;
        if anchor != 0 {
            self.count(&value)?;
            self.anchors.insert(anchor, value.clone());
        }
        match self.open.last_mut().map(|open| &mut open.content) {
            None => self.whole = Some(value),
            Some(Content::List(list)) => list.push(value),
            Some(Content::Mapping(mapping)) => mapping.put(value)?,
        }
        Ok(())
    }

    /// Counts a value that is there a second time.
    fn count(&mut self, value: &Value) -> Result<(), String> {
        let (nodes, depth) = measure(value);
        self.nodes += nodes;
        if self.nodes > NODES_MAX || self.open.len() + depth > DEPTH_MAX {
            return Err("aliases that make too much of too little".into());
        }
        Ok(())
    }
}

impl Mapping {
    /// Puts the next key, or the value of the last one.
    fn put(&mut self, value: Value) -> Result<(), String> {
        match (self.key.take(), value) {
            (None, Value::String(text)) => self.key = Some(text),
            (None, _) => return Err("a key that is no text".into()),
            (Some(name), Value::Array(sources)) if name == "<<" => self.merged.extend(sources),
            (Some(name), source) if name == "<<" => self.merged.push(source),
            (Some(name), _) if self.entries.contains_key(&name) => return Err(format!("`{name}` a second time")),
            (Some(name), value) => drop(self.entries.insert(name, value)),
        }
        Ok(())
    }

    /// Merged at the end: what the mapping has itself counts for more, wherever it stands.
    fn end(mut self) -> Result<Value, String> {
        for source in self.merged {
            let Value::Object(source) = source else { return Err("`<<` with what is no mapping".into()) };
            for (name, value) in source {
                self.entries.entry(name).or_insert(value);
            }
        }
        Ok(Value::Object(self.entries))
    }
}

/// How many values there are in it, and how deeply they are nested.
fn measure(value: &Value) -> (usize, usize) {
    let inner: &mut dyn Iterator<Item = &Value> = match value {
        Value::Array(list) => &mut list.iter(),
        Value::Object(entries) => &mut entries.values(),
        _ => &mut std::iter::empty(),
    };
    let (nodes, depth) = inner.map(measure).fold((0, 0), |(nodes, depth), (n, d)| (nodes + n, depth.max(d)));
    (nodes + 1, depth + 1)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_usual_forms_are_read() {
        let text =
            "---\na: 1\nb: [x, 'y', \"z\\n\"]\n# a comment\nc:\n  - d: |\n      two\n      lines\n  - ~\n'200': no\n";
        let value = json!({"a": "1", "b": ["x", "y", "z\n"], "c": [{"d": "two\nlines\n"}, null], "200": "no"});
        assert_eq!(parse(text), Ok(value));
        assert_eq!(parse(""), Ok(Value::Null));
    }

    #[test]
    fn anchors_and_merge_keys_are_followed() {
        let text = "one: &one {a: 1, b: 2}\nother: &two\n  c: 3\nall:\n  <<: [*one, *two]\n  a: 9\nagain: *one\n";
        let value = parse(text).unwrap();
        assert_eq!(value["all"], json!({"a": "9", "b": "2", "c": "3"}));
        assert_eq!(value["again"], json!({"a": "1", "b": "2"}));
    }

    #[test]
    fn what_is_wrong_is_said_with_its_line() {
        for (text, why) in [
            ("a: 1\nb: [1", "line "),
            ("a: 1\na: 2", "line 2: `a` a second time"),
            ("a: *b", "line 1"),
            ("a: &a [*a]", "line 1"),
            ("a: 1\n---\nb: 2", "line 2: a second document"),
            ("? [a]\n: 1", "no text"),
            ("a:\n  <<: b", "no mapping"),
        ] {
            let error = parse(text).expect_err(text);
            assert!(error.contains(why), "{text}: {error}");
        }
    }

    #[test]
    fn a_small_text_cannot_become_a_large_value() {
        assert!(parse(&"[".repeat(1000)).is_err());
        let mut laughs = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n".to_owned();
        for level in 1..12 {
            let inner = vec![format!("*a{}", level - 1); 10].join(", ");
            laughs += &format!("a{level}: &a{level} [{inner}]\n");
        }
        assert!(parse(&laughs).expect_err("it is too much").contains("too much"));
    }
}
