//! XML bodies: the parts are the document.

use std::collections::BTreeMap;

use oncegate_domain::place::{BodyPart, PlaceError, PlaceSelection, XmlPath, xml};

/// Checks the parts of a body that is well-formed:
///
/// - a document that is written from the parts alone has the same parts, so that two bodies with the same parts are the
///   same document;
/// - other line ends and a byte order mark change nothing;
/// - the value at the place of a part is in it, and its exclusion leaves nothing of it.
pub fn check(input: &[u8]) {
    let Some(parts) = parts(input, &[], &[]) else {
        let path = XmlPath::parse("/a").expect("it is a path");
        assert!(matches!(xml::value_at(input, &path), Err(PlaceError::Unreadable(_))));
        return;
    };
    let written = DocumentWriter::new(&parts).write();
    assert_eq!(self::parts(written.as_bytes(), &[], &[]).as_ref(), Some(&parts), "{written}");
    if !input.contains(&b'\r') {
        let text = String::from_utf8_lossy(input).replace('\n', "\r\n");
        assert_eq!(self::parts(text.as_bytes(), &[], &[]).as_ref(), Some(&parts));
    }
    if !input.starts_with(b"\xef\xbb\xbf") {
        let marked = [b"\xef\xbb\xbf", input].concat();
        // A declaration that the document is ASCII is wrong then.
        let is_ascii = input.windows(8).any(|window| window.eq_ignore_ascii_case(b"us-ascii"));
        assert!(is_ascii || self::parts(&marked, &[], &[]).as_ref() == Some(&parts));
    }
    for part in parts[1..].iter().take(8) {
        let Ok(path) = XmlPath::parse(&part.place["xml:".len()..]) else { continue };
        let mut rest = &part.value[..];
        let first = take_text(&mut rest);
        match xml::value_at(input, &path) {
            Ok(Some(value)) if part.place.contains('@') => assert_eq!((value, rest), (first.into(), &b""[..])),
            Ok(Some(value)) if rest.is_empty() => {
                assert_eq!(value, first.trim_matches([' ', '\t', '\n', '\r']).as_bytes())
            }
            Ok(Some(_)) => panic!("{} has more than one value", part.place),
            Ok(None) => panic!("{} has no value", part.place),
            Err(_) => {}
        }
        let path = [path];
        let within = format!("{}/", part.place);
        let excluded = self::parts(input, &[], &path).expect("it is read");
        assert!(excluded.iter().all(|other| other.place != part.place && !other.place.starts_with(&within)));
        let included = self::parts(input, &path, &[]).expect("it is read");
        assert!(included.contains(part));
    }
}

fn parts(body: &[u8], include: &[XmlPath], exclude: &[XmlPath]) -> Option<Vec<BodyPart>> {
    xml::parts(body, PlaceSelection { include, exclude })
}

fn take_text<'a>(bytes: &mut &'a [u8]) -> &'a str {
    let (length, rest) = bytes.split_first_chunk().expect("a length");
    let (text, rest) = rest.split_at(u64::from_be_bytes(*length) as usize);
    *bytes = rest;
    std::str::from_utf8(text).expect("a text")
}

/// Writes a document from its parts.
struct DocumentWriter<'p> {
    skeleton: &'p [u8],
    values: BTreeMap<&'p str, &'p [u8]>,
    /// The prefixes and URIs that the skeleton has numbered.
    names: Vec<&'p str>,
    output: String,
    /// For each open element, its name as written, its local name and the namespaces by their prefixes.
    open: Vec<(String, &'p str, BTreeMap<&'p str, &'p str>)>,
}

impl<'p> DocumentWriter<'p> {
    fn new(parts: &'p [BodyPart]) -> Self {
        let values = parts[1..].iter().map(|part| (&part.place["xml:".len()..], &part.value[..])).collect();
        Self { skeleton: &parts[0].value, values, names: Vec::new(), output: String::new(), open: Vec::new() }
    }

    fn write(mut self) -> String {
        while let Some((letter, rest)) = self.skeleton.split_first() {
            self.skeleton = rest;
            match letter {
                b'<' => self.write_tag(),
                b'>' => {
                    let (name, ..) = self.open.pop().expect("an open element");
                    self.output.push_str(&format!("</{name}>"));
                }
                b'!' => self.output.push_str("<!---->"),
                b'?' => {
                    let (target, data) = (take_text(&mut self.skeleton), take_text(&mut self.skeleton));
                    self.output.push_str(&format!("<?{target} {data}?>"));
                }
                letter => {
                    let text = self.value(*letter, "");
                    // An empty section is a text, too.
                    self.output.push_str(&if text.is_empty() { "<![CDATA[]]>".to_owned() } else { escape(text) });
                }
            }
        }
        assert!(self.open.is_empty() && self.values.values().all(|rest| rest.is_empty()));
        self.output
    }

    fn write_tag(&mut self) {
        let (local, namespace) = (take_text(&mut self.skeleton), self.take_name());
        let mut namespaces = self.open.last().map(|(.., namespaces)| namespaces.clone()).unwrap_or_default();
        let (mut tag, mut attributes) = (String::new(), String::new());
        while let Some(rest) = self.skeleton.strip_prefix(b"=") {
            self.skeleton = rest;
            let (prefix, uri) = (self.take_name(), self.take_name());
            tag.push_str(&format!(" xmlns{}{prefix}='{}'", if prefix.is_empty() { "" } else { ":" }, escape(uri)));
            namespaces.insert(prefix, uri);
        }
        let name = |namespace: &str, local: &str, is_attribute: bool| match namespace {
            "" => local.to_owned(),
            "http://www.w3.org/XML/1998/namespace" => format!("xml:{local}"),
            _ => {
                let is_it = |(prefix, uri): &(&&str, &&str)| **uri == namespace && !(is_attribute && prefix.is_empty());
                let (prefix, _) = namespaces.iter().find(is_it).expect("a declared namespace");
                if prefix.is_empty() { local.to_owned() } else { format!("{prefix}:{local}") }
            }
        };
        let written = name(namespace, local, false);
        self.open.push((written.clone(), local, namespaces.clone()));
        while let Some(rest) = self.skeleton.strip_prefix(b"@") {
            self.skeleton = rest;
            let (local, namespace) = (take_text(&mut self.skeleton), self.take_name());
            let (letter, rest) = self.skeleton.split_first().expect("a value");
            self.skeleton = rest;
            let value = self.value(*letter, &format!("/@{local}"));
            attributes.push_str(&format!(" {}='{}'", name(namespace, local, true), escape(value)));
        }
        self.output.push_str(&format!("<{written}{tag}{attributes}>"));
    }

    /// Takes a prefix or a URI by its number, behind which its text is the first time.
    fn take_name(&mut self) -> &'p str {
        let (number, rest) = self.skeleton.split_first_chunk().expect("a number");
        self.skeleton = rest;
        let number = u64::from_be_bytes(*number) as usize;
        if number == self.names.len() {
            self.names.push(take_text(&mut self.skeleton));
        }
        self.names[number]
    }

    /// Takes a value: from the skeleton, or from the part of the open element and `step`.
    fn value(&mut self, letter: u8, step: &str) -> &'p str {
        match letter {
            b'$' => {
                let path: String = self.open.iter().map(|(_, local, _)| format!("/{local}")).collect();
                take_text(self.values.get_mut(&*(path + step)).expect("a part"))
            }
            b' ' | b'&' => take_text(&mut self.skeleton),
            other => panic!("no step is {}", other.escape_ascii()),
        }
    }
}

fn escape(text: &str) -> String {
    text.chars().map(|character| format!("&#{};", u32::from(character))).collect()
}
