//! The members of a message, read by their places.
//!
//! A reader by places takes what is between the quotes and brackets as it is: `NaN`, half of a surrogate pair and any
//! depth. A service that writes such a response has clients that read it.

use std::ops::Range;

use serde_json::value::RawValue;

/// The members of a message: the texts of their values.
#[derive(Default)]
pub(super) struct Members<'a> {
    pub(super) id: Option<&'a [u8]>,
    pub(super) method: Option<&'a [u8]>,
    pub(super) params: Option<&'a [u8]>,
    /// Whether there is a result or an error.
    pub(super) has_outcome: bool,
    pub(super) has_others: bool,
}

impl<'a> Members<'a> {
    /// Reads a text that is JSON for every program; `None` for any other text, and where [`Self::locate`] finds none.
    pub(super) fn read(text: &'a [u8]) -> Option<Self> {
        let value: &RawValue = serde_json::from_slice(text).ok()?;
        Self::locate(value.get().as_bytes())
    }

    /// Reads an object by the places of its members. `None` for any other value, and for an object in which a member is
    /// there twice, or under a name that some servers take for it.
    pub(super) fn locate(object: &'a [u8]) -> Option<Self> {
        const NAMES: [&str; 6] = ["jsonrpc", "id", "method", "params", "result", "error"];
        let mut reader = PlaceReader { text: object, position: 0 };
        let mut members = Self::default();
        let mut seen = Vec::new();
        let mut is_clear = true;
        reader.read_members(|name, place| {
            let value = &object[place];
            match NAMES.into_iter().find(|known| known.as_bytes().eq_ignore_ascii_case(&name)) {
                Some(known) if *known.as_bytes() != *name || seen.contains(&known) => is_clear = false,
                Some(known) => {
                    seen.push(known);
                    match known {
                        "id" => members.id = Some(value),
                        "method" => members.method = Some(value),
                        "params" => members.params = Some(value),
                        "jsonrpc" => {}
                        _ => members.has_outcome = true,
                    }
                }
                None => members.has_others = true,
            }
        })?;
        is_clear.then_some(members)
    }
}

/// Whether an object, or one in an array, has a member that some servers take for the method. It may end too early.
pub(super) fn has_method(text: &[u8]) -> bool {
    let is_there = |object: &[u8]| {
        let mut is_there = false;
        PlaceReader::behind_mark(object).read_members(|name, _| is_there |= name.eq_ignore_ascii_case(b"method"));
        is_there
    };
    is_there(text) || locate_elements(text).into_iter().any(|element| is_there(&text[element]))
}

/// An object without the member of this name, its other members as they were sent. Any other text stays as it is.
pub(super) fn without_member(object: &[u8], name: &[u8]) -> Vec<u8> {
    let mut kept = Vec::new();
    let read = PlaceReader { text: object, position: 0 }.read_members(|other, place| {
        if other != name {
            kept.push([b"\"", &*other, b"\":", &object[place]].concat());
        }
    });
    match read {
        Some(()) => [b"{", &*kept.join(&b','), b"}"].concat(),
        None => object.to_vec(),
    }
}

/// The places of the elements of an array, or of a text's only value. A byte order mark before them does not count.
/// Empty for a text that ends too early, or goes on behind its value.
pub(super) fn locate_elements(text: &[u8]) -> Vec<Range<usize>> {
    let mut reader = PlaceReader::behind_mark(text);
    reader.read_elements().filter(|_| reader.is_at_end()).unwrap_or_default()
}

struct PlaceReader<'a> {
    text: &'a [u8],
    position: usize,
}

impl<'a> PlaceReader<'a> {
    /// Begins behind a byte order mark.
    fn behind_mark(text: &'a [u8]) -> Self {
        Self { text, position: if text.starts_with(b"\xef\xbb\xbf") { 3 } else { 0 } }
    }

    /// Reads an object, and hands out each member's name and the place of its value. `None` for any other text, also
    /// for one that begins like an object.
    fn read_members(&mut self, mut take: impl FnMut(Vec<u8>, Range<usize>)) -> Option<()> {
        let mut has_more = self.skip_if(b'{').then(|| !self.skip_if(b'}'))?;
        while has_more {
            let name = self.read_name()?;
            if !self.skip_if(b':') {
                return None;
            }
            take(name, self.read_value()?);
            has_more = !self.skip_if(b'}');
            if has_more && !self.skip_if(b',') {
                return None;
            }
        }
        Some(())
    }

    fn read_elements(&mut self) -> Option<Vec<Range<usize>>> {
        if !self.skip_if(b'[') {
            return Some(vec![self.read_value()?]);
        }
        let mut elements = Vec::new();
        while !self.skip_if(b']') {
            elements.push(self.read_value()?);
            self.skip_if(b',');
        }
        Some(elements)
    }

    /// The place of the value that comes next.
    fn read_value(&mut self) -> Option<Range<usize>> {
        self.skip_space();
        let (start, mut depth) = (self.position, 0);
        loop {
            match (self.text.get(self.position)?, depth) {
                (b'"', _) => self.read_string()?,
                (b'{' | b'[', _) => {
                    depth += 1;
                    self.position += 1;
                    continue;
                }
                // The end of a number or a word, which belongs to what is around it.
                (b',' | b'}' | b']' | b' ' | b'\t' | b'\n' | b'\r', 0) => break,
                (b'}' | b']', _) => {
                    depth -= 1;
                    self.position += 1;
                }
                _ => {
                    self.position += 1;
                    continue;
                }
            }
            if depth == 0 {
                break;
            }
        }
        (self.position > start).then_some(start..self.position)
    }

    /// The name that comes next, its escapes resolved.
    fn read_name(&mut self) -> Option<Vec<u8>> {
        self.skip_space();
        let start = self.position;
        if self.text.get(start) != Some(&b'"') {
            return None;
        }
        self.read_string()?;
        let quoted = &self.text[start..self.position];
        let plain = || quoted[1..quoted.len() - 1].to_vec();
        Some(serde_json::from_slice::<String>(quoted).map_or_else(|_| plain(), String::into_bytes))
    }

    /// Reads a string from its opening to its closing quote.
    fn read_string(&mut self) -> Option<()> {
        self.position += 1;
        loop {
            let rest = self.text.get(self.position..)?;
            self.position += memchr::memchr2(b'"', b'\\', rest)?;
            if self.text[self.position] == b'"' {
                self.position += 1;
                return Some(());
            }
            self.position += 2;
        }
    }

    fn skip_if(&mut self, byte: u8) -> bool {
        self.skip_space();
        let is_next = self.text.get(self.position) == Some(&byte);
        self.position += usize::from(is_next);
        is_next
    }

    fn is_at_end(&mut self) -> bool {
        self.skip_space();
        self.position == self.text.len()
    }

    fn skip_space(&mut self) {
        let rest = &self.text[self.position.min(self.text.len())..];
        self.position += rest.iter().take_while(|byte| matches!(byte, b' ' | b'\t' | b'\n' | b'\r')).count();
    }
}
