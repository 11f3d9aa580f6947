//! YAML, as far as an OpenAPI document needs it.
//!
//! Plain null is null. All other scalars stay text as written: `1` is not a number, `on` and `no` are not booleans.
//! Anchors and merge keys are followed, within limits.

use std::collections::HashMap;

use saphyr_parser::{Event, Parser, ScalarStyle};
use serde_json::{Map, Value};

/// The maximum depth of nested values, as in serde_json: code that reads them is recursive.
const DEPTH_MAX: usize = 128;

/// The maximum number of values, as aliases can turn few into many: more than anybody writes, and they fit into memory.
const NODES_MAX: usize = 4_000_000;

pub(super) fn parse(text: &str) -> Result<Value, String> {
    let mut builder = Builder::default();
    for event in Parser::new_from_str(text) {
        let (event, span) = event.map_err(|error| format!("line {}: {}", error.marker().line(), error.info()))?;
        builder.add_event(event).map_err(|error| format!("line {}: {error}", span.start.line()))?;
    }
    Ok(builder.root.unwrap_or_default())
}

#[derive(Default)]
struct Builder {
    root: Option<Value>,
    open: Vec<OpenNode>,
    anchors: HashMap<usize, Value>,
    nodes: usize,
}

/// A list or a mapping that has not ended yet, and its anchor; 0 for none.
struct OpenNode {
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
    /// The key whose value comes next.
    key: Option<String>,
    /// The values of merge keys.
    merged: Vec<Value>,
}

impl Builder {
    fn add_event(&mut self, event: Event<'_>) -> Result<(), String> {
        match event {
            Event::Alias(anchor) => {
                let value = self.anchors.get(&anchor).cloned().ok_or("an alias inside the value that it names")?;
                self.count(&value)?;
                self.add_value(value, 0)
            }
            Event::Scalar(text, style, anchor, _) => {
                let is_nothing = style == ScalarStyle::Plain && matches!(&*text, "" | "~" | "null" | "Null" | "NULL");
                let awaits_key = match self.open.last().map(|open| &open.content) {
                    Some(Content::Mapping(mapping)) => mapping.key.is_none(),
                    _ => false,
                };
                match is_nothing && !awaits_key {
                    true => self.add_value(Value::Null, anchor),
                    false => self.add_value(Value::String(text.into_owned()), anchor),
                }
            }
            Event::SequenceStart(anchor, _) => self.open(anchor, Content::List(Vec::new())),
            Event::MappingStart(anchor, _) => self.open(anchor, Content::Mapping(Mapping::default())),
            Event::SequenceEnd | Event::MappingEnd => {
                let OpenNode { anchor, content } = self.open.pop().expect("the parser ends what has begun");
                let value = match content {
                    Content::List(list) => Value::Array(list),
                    Content::Mapping(mapping) => mapping.finish()?,
                };
                self.add_value(value, anchor)
            }
            Event::DocumentStart(_) if self.root.is_some() => Err("a second document begins".into()),
            Event::DocumentStart(_) | Event::DocumentEnd | Event::Nothing | Event::StreamEnd | Event::StreamStart => {
                Ok(())
            }
        }
    }

    fn open(&mut self, anchor: usize, content: Content) -> Result<(), String> {
        self.open.push(OpenNode { anchor, content });
        if self.open.len() > DEPTH_MAX { Err("nested too deeply".into()) } else { Ok(()) }
    }

    /// Adds a value to the innermost open list or mapping.
    fn add_value(&mut self, value: Value, anchor: usize) -> Result<(), String> {
        self.nodes += 1;
        if anchor != 0 {
            self.count(&value)?;
            self.anchors.insert(anchor, value.clone());
        }
        match self.open.last_mut().map(|open| &mut open.content) {
            None => self.root = Some(value),
            Some(Content::List(list)) => list.push(value),
            Some(Content::Mapping(mapping)) => mapping.add(value)?,
        }
        Ok(())
    }

    fn count(&mut self, value: &Value) -> Result<(), String> {
        let (nodes, depth) = measure(value);
        self.nodes += nodes;
        if self.nodes > NODES_MAX || self.open.len() + depth > DEPTH_MAX {
            return Err("aliases that expand to too many values".into());
        }
        Ok(())
    }
}

impl Mapping {
    /// Adds the next key, or the value of the last one.
    fn add(&mut self, value: Value) -> Result<(), String> {
        match (self.key.take(), value) {
            (None, Value::String(text)) => self.key = Some(text),
            (None, _) => return Err("a key that is not text".into()),
            (Some(name), Value::Array(sources)) if name == "<<" => self.merged.extend(sources),
            (Some(name), source) if name == "<<" => self.merged.push(source),
            (Some(name), _) if self.entries.contains_key(&name) => return Err(format!("`{name}` twice")),
            (Some(name), value) => drop(self.entries.insert(name, value)),
        }
        Ok(())
    }

    /// Ends the mapping. Values are merged only here: the mapping's own entries win, wherever they stand.
    fn finish(mut self) -> Result<Value, String> {
        for source in self.merged {
            let Value::Object(source) = source else { return Err("`<<` with a value that is not a mapping".into()) };
            for (name, value) in source {
                self.entries.entry(name).or_insert(value);
            }
        }
        Ok(Value::Object(self.entries))
    }
}

/// Returns how many values there are in a value, and how deeply they are nested.
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
    fn errors_name_the_line() {
        for (text, why) in [
            ("a: 1\nb: [1", "line "),
            ("a: 1\na: 2", "line 2: `a` twice"),
            ("a: *b", "line 1"),
            ("a: &a [*a]", "line 1"),
            ("a: 1\n---\nb: 2", "line 2: a second document"),
            ("? [a]\n: 1", "not text"),
            ("a:\n  <<: b", "not a mapping"),
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
        assert!(parse(&laughs).expect_err("it is too much").contains("too many"));
    }
}
