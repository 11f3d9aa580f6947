#![doc = include_str!("../README.md")]

mod number;
mod select;
mod string;

use std::borrow::Cow;
use std::cmp::Ordering;
use std::error::Error;
use std::fmt;

pub use select::{Pointer, PointerError, ReferencedValue, Selection};

/// The greatest depth of nested arrays and objects: a text in which more are open at once is refused with
/// [`CanonicalizeError::TooDeep`].
///
/// It is enough for every payload seen in practice, and the limit of `serde_json` too. Recursion to this depth is safe
/// on the stack of any thread.
pub const DEPTH_MAX: usize = 128;

/// Returns the canonical form of a JSON text (RFC 8259) as in RFC 8785 section 3.2, except that a number keeps every
/// digit of its decimal value. The result is UTF-8.
///
/// ```
/// use canonical_json::{CanonicalizeError, canonicalize};
///
/// assert_eq!(&*canonicalize(br#" {"b": 1.0, "a": "\u00e9"} "#)?, r#"{"a":"é","b":1}"#.as_bytes());
/// assert_eq!(canonicalize(br#"{"a": 1, "a": 2}"#), Err(CanonicalizeError::DuplicateName));
/// # Ok::<(), CanonicalizeError>(())
/// ```
///
/// A number is written in the layout of RFC 8785 section 3.2.2.3 (ECMA-262 `Number::toString`): `1.0`, `1` and `1e0`
/// become `1`, `-0` becomes `0`, `1e21` becomes `1e+21`. The digits are those of the literal, so the result is that of
/// RFC 8785 exactly if the literal is the same decimal as the shortest form of its double.
///
/// The result is borrowed if only white space around the value had to be removed. Otherwise it is less than six times
/// as long as the text (`1e20` is the worst case), and scratch memory is less than seven times as long (many members of
/// one letter). Time is linear in the length of the text, except for members out of order: these are sorted, and moved
/// once for each such object around them.
///
/// # Errors
///
/// [`CanonicalizeError`] says why the text has no canonical form.
pub fn canonicalize(text: &[u8]) -> Result<Cow<'_, [u8]>, CanonicalizeError> {
    // First, and for the whole text: this is several times faster than a check within the strings, and outside of them
    // every byte that is not ASCII is a syntax error anyway.
    if std::str::from_utf8(text).is_err() {
        return Err(CanonicalizeError::InvalidUtf8);
    }
    let mut reader = Canonicalizer::new(text);
    reader.skip_space();
    reader.read_value(0)?;
    let end = reader.position;
    if !text[end..].iter().all(|byte| is_space(*byte)) {
        return Err(CanonicalizeError::Syntax);
    }
    if reader.output.is_empty() {
        return Ok(Cow::Borrowed(&text[reader.run..end]));
    }
    reader.flush();
    Ok(Cow::Owned(reader.output))
}

/// Returns the canonical form of the part of a JSON text that `selection` keeps.
///
/// `include` is applied first: if it has any pointer, only values at or below its pointers stay. Objects and arrays
/// around such a value stay too. An array element that is not selected becomes `null` before a selected one, so that
/// the selected one keeps its index; after the last selected one it is removed. Then `exclude` is applied: a member
/// that it points at is removed, an array element becomes `null`.
///
/// The result is empty if nothing is left. No JSON value has an empty form, so the two cannot be confused. A pointer to
/// a value that does not exist selects nothing.
///
/// Beyond the time of [`canonicalize`], time is at most the length of the text times the number of pointers and the
/// segments of the longest.
///
/// ```
/// use canonical_json::{Selection, canonicalize_selected};
///
/// let text = br#"{"lines": [{"id": 7, "at": "12:00"}, {"id": 8, "at": "12:01"}], "note": ""}"#;
/// let selection = Selection { include: vec!["/lines".parse()?], exclude: vec!["/lines/*/at".parse()?] };
/// assert_eq!(&*canonicalize_selected(text, &selection)?, br#"{"lines":[{"id":7},{"id":8}]}"#);
///
/// let second = Selection { include: vec!["/lines/1/id".parse()?], ..Selection::default() };
/// assert_eq!(&*canonicalize_selected(text, &second)?, br#"{"lines":[null,{"id":8}]}"#);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
///
/// [`CanonicalizeError`] if the text has no canonical form, whether the reason lies in a selected part or not.
pub fn canonicalize_selected<'t>(text: &'t [u8], selection: &Selection) -> Result<Cow<'t, [u8]>, CanonicalizeError> {
    // On the canonical text, not while reading: excluded parts have to be validated too, and names and order are final
    // there.
    let canonical = canonicalize(text)?;
    Ok(select::apply(canonical, selection))
}

/// Finds the value that `pointer` references in a JSON text (RFC 6901 section 4), such as
/// an id in the body of a request.
///
/// Returns `None` if there is no such value. A pointer with a `*` references no single value and finds none: see
/// [`Pointer::is_pattern`].
///
/// ```
/// use canonical_json::{Pointer, ReferencedValue, value_at};
///
/// let text = br#"{"order": {"id": "\u0041-17"}}"#;
/// assert_eq!(value_at(text, &Pointer::parse("/order/id")?)?, Some(ReferencedValue::String("A-17".into())));
/// assert_eq!(value_at(text, &Pointer::parse("/order/0")?)?, None);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
///
/// [`CanonicalizeError`] if the text has no canonical form. In particular, an object with a duplicate name is an error,
/// not a guess.
pub fn value_at(text: &[u8], pointer: &Pointer) -> Result<Option<ReferencedValue>, CanonicalizeError> {
    let canonical = canonicalize(text)?;
    select::find(&canonical, pointer).map(ReferencedValue::from_canonical).transpose()
}

/// Returns the members of the object that a canonical text is, or the elements of the list: the name of each as it is
/// written, with its quotes, and `None` in a list; and its value. `None` for another value.
///
/// A text that [`canonicalize`] has not returned is split too, at places that mean nothing.
///
/// ```
/// let mut children = canonical_json::canonical_children(br#"{"a":[1,{"b":2}],"c":3}"#).unwrap();
/// assert_eq!(children.next(), Some((Some(&br#""a""#[..]), &br#"[1,{"b":2}]"#[..])));
/// assert_eq!(children.next(), Some((Some(&br#""c""#[..]), &b"3"[..])));
/// assert_eq!(canonical_json::canonical_children(b"[1]").unwrap().next(), Some((None, &b"1"[..])));
/// assert!(canonical_json::canonical_children(b"1").is_none());
/// ```
#[must_use]
pub fn canonical_children(canonical: &[u8]) -> Option<impl Iterator<Item = (Option<&[u8]>, &[u8])>> {
    select::children(canonical)
}

/// The reason why a text has no canonical form.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum CanonicalizeError {
    /// An object has two members with the same name, compared with their escapes resolved. RFC 8259 section 4 leaves
    /// open which one counts, so two programs might use different ones.
    DuplicateName,
    /// The power of ten of a number's first digit is beyond ±(10^18 - 1): 18 digits.
    ExponentTooLarge,
    /// The text is not UTF-8 (RFC 8259 section 8.1).
    InvalidUtf8,
    /// A `\u` escape is one half of a surrogate pair (RFC 8259 section 8.2): no character, so it has no UTF-8.
    LoneSurrogate,
    /// The text is not one JSON value by the grammar of RFC 8259. This includes a byte order mark, an empty text, and
    /// anything after the value.
    Syntax,
    /// Arrays and objects are nested deeper than [`DEPTH_MAX`].
    TooDeep,
}

impl fmt::Display for CanonicalizeError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::DuplicateName => "a JSON object has two members with the same name",
            Self::ExponentTooLarge => "a JSON number has an exponent of more than 18 digits",
            Self::InvalidUtf8 => "the text is not UTF-8",
            Self::LoneSurrogate => "a JSON string has one half of a surrogate pair",
            Self::Syntax => "the text is not JSON",
            Self::TooDeep => "arrays and objects are nested deeper than 128",
        })
    }
}

impl Error for CanonicalizeError {}

/// Reads a text and writes its canonical form in one pass.
///
/// The output so far is `output` followed by `text[run..position]`: bytes that are canonical already are only passed
/// over, and copied together when something different has to follow.
struct Canonicalizer<'t> {
    text: &'t [u8],
    position: usize,
    run: usize,
    output: Vec<u8>,
    /// The members of all open objects, innermost last.
    members: Vec<ObjectMember>,
    /// The names of these members that have escapes, unescaped.
    names: Vec<u8>,
    /// Scratch memory: one object's sorted members, or one number.
    scratch: Vec<u8>,
}

/// A member of an open object: its name, for comparing, and its range in the output, with its value.
struct ObjectMember {
    name_start: usize,
    name_end: usize,
    /// Whether the name is in `names`; otherwise it has no escapes and is in the text.
    is_unescaped: bool,
    start: usize,
    end: usize,
}

impl ObjectMember {
    fn name<'a>(&self, text: &'a [u8], names: &'a [u8]) -> &'a [u8] {
        let source = if self.is_unescaped { names } else { text };
        &source[self.name_start..self.name_end]
    }
}

impl<'t> Canonicalizer<'t> {
    fn new(text: &'t [u8]) -> Self {
        Self {
            text,
            position: 0,
            run: 0,
            output: Vec::new(),
            members: Vec::new(),
            names: Vec::new(),
            scratch: Vec::new(),
        }
    }

    /// Reads a value within `depth` open arrays and objects.
    fn read_value(&mut self, depth: usize) -> Result<(), CanonicalizeError> {
        match self.peek() {
            Some(b'"') => self.read_string().map(drop),
            Some(b'-' | b'0'..=b'9') => self.read_number(),
            Some(b'{') => self.read_object(depth),
            Some(b'[') => self.read_array(depth),
            Some(b't') => self.read_literal(b"true"),
            Some(b'f') => self.read_literal(b"false"),
            Some(b'n') => self.read_literal(b"null"),
            _ => Err(CanonicalizeError::Syntax),
        }
    }

    fn read_object(&mut self, depth: usize) -> Result<(), CanonicalizeError> {
        if depth == DEPTH_MAX {
            return Err(CanonicalizeError::TooDeep);
        }
        self.position += 1;
        self.skip_space();
        if self.skip_if(b'}') {
            return Ok(());
        }
        let (first, names) = (self.members.len(), self.names.len());
        let mut in_order = true;
        loop {
            in_order &= self.read_member_name(first)?;
            let member = self.members.len() - 1;
            self.skip_space();
            self.expect(b':')?;
            self.skip_space();
            self.read_value(depth + 1)?;
            self.members[member].end = self.output_len();
            self.skip_space();
            if !self.skip_if(b',') {
                break;
            }
            self.skip_space();
        }
        if !in_order {
            self.sort_members(first)?;
        }
        self.members.truncate(first);
        self.names.truncate(names);
        self.expect(b'}')
    }

    /// Reads a name into `members`. Returns whether it sorts after the name of the object's previous member.
    fn read_member_name(&mut self, first: usize) -> Result<bool, CanonicalizeError> {
        if self.peek() != Some(b'"') {
            return Err(CanonicalizeError::Syntax);
        }
        let start = self.output_len();
        let name_start = self.position + 1;
        let has_escapes = self.read_string()?;
        let name_end = self.position - 1;
        let mut member = ObjectMember { name_start, name_end, is_unescaped: has_escapes, start, end: start };
        if has_escapes {
            member.name_start = self.names.len();
            string::unescape(&self.text[name_start..name_end], &mut self.names)?;
            member.name_end = self.names.len();
        }
        let order = match self.members[first..].last() {
            Some(last) => {
                string::compare_as_utf16(last.name(self.text, &self.names), member.name(self.text, &self.names))
            }
            None => Ordering::Less,
        };
        self.members.push(member);
        match order {
            Ordering::Less => Ok(true),
            Ordering::Equal => Err(CanonicalizeError::DuplicateName),
            Ordering::Greater => Ok(false),
        }
    }

    /// Sorts the object's members as in RFC 8785 section 3.2.3. Equal names that are not neighbours occur only in
    /// objects out of order, so this also looks for them.
    fn sort_members(&mut self, first: usize) -> Result<(), CanonicalizeError> {
        self.flush();
        let Self { text, output, names, scratch, .. } = self;
        let members = &mut self.members[first..];
        let start = members[0].start;
        members.sort_unstable_by(|a, b| string::compare_as_utf16(a.name(text, names), b.name(text, names)));
        if members.windows(2).any(|pair| pair[0].name(text, names) == pair[1].name(text, names)) {
            return Err(CanonicalizeError::DuplicateName);
        }
        scratch.clear();
        for member in members {
            if !scratch.is_empty() {
                scratch.push(b',');
            }
            scratch.extend_from_slice(&output[member.start..member.end]);
        }
        output.truncate(start);
        output.extend_from_slice(scratch);
        Ok(())
    }

    fn read_array(&mut self, depth: usize) -> Result<(), CanonicalizeError> {
        if depth == DEPTH_MAX {
            return Err(CanonicalizeError::TooDeep);
        }
        self.position += 1;
        self.skip_space();
        if self.skip_if(b']') {
            return Ok(());
        }
        loop {
            self.read_value(depth + 1)?;
            self.skip_space();
            if !self.skip_if(b',') {
                return self.expect(b']');
            }
            self.skip_space();
        }
    }

    /// Reads a string from its opening to its closing quote. Returns whether it has escapes.
    fn read_string(&mut self) -> Result<bool, CanonicalizeError> {
        self.position += 1;
        let mut has_escapes = false;
        loop {
            self.position += string::literal_len(&self.text[self.position..]);
            match self.peek() {
                Some(b'"') => {
                    self.position += 1;
                    return Ok(has_escapes);
                }
                Some(b'\\') => self.read_escape()?,
                // The text ends here, or has an unescaped control character (RFC 8259 section 7).
                _ => return Err(CanonicalizeError::Syntax),
            }
            has_escapes = true;
        }
    }

    fn read_escape(&mut self) -> Result<(), CanonicalizeError> {
        let (character, len) = string::read_escape(&self.text[self.position..])?;
        let mut buffer = [0; 6];
        let canonical = string::canonical(character, &mut buffer);
        self.replace_input(len, canonical);
        Ok(())
    }

    fn read_number(&mut self) -> Result<(), CanonicalizeError> {
        let literal = number::scan(&self.text[self.position..])?;
        if literal.is_plainly_canonical() {
            self.position += literal.len();
            return Ok(());
        }
        let mut canonical = std::mem::take(&mut self.scratch);
        canonical.clear();
        literal.write_canonical(&mut canonical)?;
        self.replace_input(literal.len(), &canonical);
        self.scratch = canonical;
        Ok(())
    }

    fn read_literal(&mut self, literal: &[u8]) -> Result<(), CanonicalizeError> {
        if !self.text[self.position..].starts_with(literal) {
            return Err(CanonicalizeError::Syntax);
        }
        self.position += literal.len();
        Ok(())
    }

    fn peek(&self) -> Option<u8> {
        self.text.get(self.position).copied()
    }

    fn skip_if(&mut self, byte: u8) -> bool {
        let found = self.peek() == Some(byte);
        self.position += usize::from(found);
        found
    }

    fn expect(&mut self, byte: u8) -> Result<(), CanonicalizeError> {
        if self.skip_if(byte) { Ok(()) } else { Err(CanonicalizeError::Syntax) }
    }

    /// Passes over white space without writing it.
    #[inline]
    fn skip_space(&mut self) {
        if self.peek().is_some_and(is_space) {
            self.flush();
            let space = self.text[self.position..].iter().take_while(|byte| is_space(**byte)).count();
            self.position += space;
            self.run = self.position;
        }
    }

    /// Passes over `len` bytes of the text and writes `canonical` in their place, unless they are the same.
    fn replace_input(&mut self, len: usize, canonical: &[u8]) {
        let end = self.position + len;
        if self.text[self.position..end] != *canonical {
            self.flush();
            self.output.extend_from_slice(canonical);
            self.run = end;
        }
        self.position = end;
    }

    /// Returns the length of the output, with the bytes that are not copied yet.
    fn output_len(&self) -> usize {
        self.output.len() + self.position - self.run
    }

    fn flush(&mut self) {
        if self.output.capacity() == 0 {
            self.output.reserve(self.text.len());
        }
        self.output.extend_from_slice(&self.text[self.run..self.position]);
        self.run = self.position;
    }
}

fn is_space(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t' | b'\n' | b'\r')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn canonical(text: impl AsRef<[u8]>) -> Result<String, CanonicalizeError> {
        canonicalize(text.as_ref()).map(|form| String::from_utf8(form.into_owned()).expect("the form is UTF-8"))
    }

    #[track_caller]
    fn assert_forms(cases: &[(&str, &str)]) {
        for (text, form) in cases {
            assert_eq!(canonical(text).as_deref(), Ok(*form), "the form of {text}");
            assert_eq!(canonical(form).as_deref(), Ok(*form), "the form of the form of {text}");
        }
    }

    #[track_caller]
    fn assert_refused(reason: CanonicalizeError, texts: &[&str]) {
        for text in texts {
            assert_eq!(canonical(text), Err(reason), "the form of {text:?}");
        }
    }

    fn pointers(texts: &[&str]) -> Vec<Pointer> {
        texts.iter().map(|text| Pointer::parse(text).expect("the pointer is one")).collect()
    }

    #[track_caller]
    fn selected(text: &str, include: &[&str], exclude: &[&str]) -> String {
        let selection = Selection { include: pointers(include), exclude: pointers(exclude) };
        let form = canonicalize_selected(text.as_bytes(), &selection).expect("the text is canonicalisable");
        let form = String::from_utf8(form.into_owned()).expect("the form is UTF-8");
        if !form.is_empty() {
            assert_eq!(canonical(&form).as_ref(), Ok(&form), "what is left is canonical");
        }
        form
    }

    fn found(text: &str, pointer: &str) -> Option<ReferencedValue> {
        value_at(text.as_bytes(), &pointers(&[pointer])[0]).expect("the text is canonicalisable")
    }

    #[test]
    fn the_example_of_rfc_8785_section_3_2_has_its_form() {
        let text = r#"{
            "numbers": [333333333.33333329, 1E30, 4.50, 2e-3, 0.000000000000000000000000001],
            "string": "\u20ac$\u000F\u000aA'\u0042\u0022\u005c\\\"\/",
            "literals": [null, true, false]
        }"#;
        // The RFC prints the first number as 333333333.3333333. That is another decimal: here it keeps all its digits.
        let form = concat!(
            r#"{"literals":[null,true,false],"numbers":[333333333.33333329,1e+30,4.5,0.002,1e-27],"#,
            r#""string":"€$\u000f\nA'B\"\\\\\"/"}"#
        );
        assert_forms(&[(text, form)]);
    }

    #[test]
    fn members_are_in_the_order_of_their_utf_16_code_units() {
        // The names of RFC 8785 section 3.2.3: U+1F600 begins with the unit D83D and comes before U+FB33.
        let text = r#"{"\u20ac":1,"\r":2,"\ufb33":3,"1":4,"\ud83d\ude00":5,"\u0080":6,"\u00f6":7}"#;
        let form = "{\"\\r\":2,\"1\":4,\"\u{80}\":6,\"ö\":7,\"€\":1,\"\u{1f600}\":5,\"\u{fb33}\":3}";
        assert_forms(&[(text, form)]);
        let mut names =
            ["", "a", "aa", "\u{d7ff}", "\u{e000}", "\u{ffff}", "\u{10000}", "\u{10ffff}", "é\u{fb33}", "é😀"];
        names.sort_by(|a, b| string::compare_as_utf16(a.as_bytes(), b.as_bytes()));
        assert!(names.is_sorted_by_key(|name| name.encode_utf16().collect::<Vec<_>>()));
    }

    #[test]
    fn members_out_of_order_are_sorted_at_every_level() {
        assert_forms(&[
            (r#"{"b":{"d":1,"c":[{"f":1,"e":2}]},"a":{}}"#, r#"{"a":{},"b":{"c":[{"e":2,"f":1}],"d":1}}"#),
            (r#"{"c" : 1.0, "\u0061" : "\/", "b" : [ ] }"#, r#"{"a":"/","b":[],"c":1}"#),
            // The quote sorts before the backslash of its own escape would.
            (r##"{"#":1,"\"":2,"[":3,"\\":4}"##, r##"{"\"":2,"#":1,"[":3,"\\":4}"##),
            (r#"{"":1,"\u0000":2,"\u0001":3}"#, r#"{"":1,"\u0000":2,"\u0001":3}"#),
        ]);
    }

    #[test]
    fn strings_have_only_the_escapes_they_need() {
        assert_forms(&[
            (r#""\u0000\u0008\u0009\u000A\u000B\u000C\u000D\u001F\u0020""#, r#""\u0000\b\t\n\u000b\f\r\u001f ""#),
            (r#""\u0022\u005C\u002f\u007f""#, "\"\\\"\\\\/\u{7f}\""),
            (r#""\uD834\uDD1E\u00E9e\u0301""#, "\"𝄞ée\u{301}\""),
            (r#""\uFEFF\uffff\u2028""#, "\"\u{feff}\u{ffff}\u{2028}\""),
        ]);
    }

    #[test]
    fn a_number_that_its_double_prints_back_has_the_form_of_rfc_8785() {
        assert_forms(&[
            ("1.0", "1"),
            ("1e0", "1"),
            ("10E-1", "1"),
            ("-0", "0"),
            ("-0.000", "0"),
            ("0e999999999999999999999", "0"),
            ("1e2", "100"),
            ("0.1", "0.1"),
            ("-12.50", "-12.5"),
            ("1e20", "100000000000000000000"),
            ("1e21", "1e+21"),
            ("123e19", "1.23e+21"),
            ("0.000001", "0.000001"),
            ("0.0000001", "1e-7"),
            ("0.000000123", "1.23e-7"),
            ("5e-324", "5e-324"),
            ("-1.7976931348623157E308", "-1.7976931348623157e+308"),
            ("295147905179352830000", "295147905179352830000"),
            ("9007199254740992", "9007199254740992"),
            ("9.999999999999997e22", "9.999999999999997e+22"),
            ("333333333.3333332", "333333333.3333332"),
        ]);
    }

    #[test]
    fn a_number_that_its_double_does_not_print_back_keeps_its_digits() {
        assert_forms(&[
            ("9007199254740993", "9007199254740993"),
            ("1234567890123456789", "1234567890123456789"),
            ("0.1000000000000000055", "0.1000000000000000055"),
            ("295147905179352825856", "295147905179352825856"),
            ("12345678901234567890123", "1.2345678901234567890123e+22"),
            ("12345678901234567890.10", "12345678901234567890.1"),
            ("1e400", "1e+400"),
            ("-0.1e-399", "-1e-400"),
            ("10e999999999999999998", "1e+999999999999999999"),
            ("1e-999999999999999999", "1e-999999999999999999"),
        ]);
    }

    #[test]
    fn an_exponent_beyond_eighteen_digits_is_refused_however_it_is_spelt() {
        assert_refused(
            CanonicalizeError::ExponentTooLarge,
            &[
                "1e1000000000000000000",
                "10e999999999999999999",
                "0.1e-999999999999999999",
                "1e-99999999999999999999999",
            ],
        );
    }

    #[test]
    fn a_canonical_text_is_not_copied() {
        let texts = [
            "{}",
            "[]",
            "0",
            r#""""#,
            r#"{"a":[1,-2.5,1e+21],"b":{"\n":"\u001f\\é\""}}"#,
            " \n{\"a\":[null,true,false]}\r\n\t",
        ];
        for text in texts {
            let form = canonicalize(text.as_bytes());
            assert_eq!(form, Ok(Cow::Borrowed(text.trim().as_bytes())));
            assert!(matches!(form, Ok(Cow::Borrowed(_))), "{text} was copied");
        }
    }

    #[test]
    fn texts_that_are_not_json_are_refused() {
        assert_refused(
            CanonicalizeError::Syntax,
            &[
                "",
                " ",
                "\u{feff}{}",
                "{} {}",
                "1,",
                "nul",
                "nulll",
                "True",
                "NaN",
                "-",
                "+1",
                "01",
                "-01",
                "1.",
                ".5",
                "1.e1",
                "1e",
                "1e+",
                "0x1",
                "1 2",
                "[",
                "[1",
                "[1,",
                "[1,]",
                "[,1]",
                "[1 2]",
                "[}",
                "]",
                "{",
                "{\"a\"",
                "{\"a\":",
                "{\"a\":1",
                "{\"a\":1,",
                "{\"a\":1,}",
                "{,}",
                "{a:1}",
                "{'a':1}",
                "{1:1}",
                "{\"a\" 1}",
                "{\"a\":1]",
                "\"",
                "\"a",
                "\"\\",
                "\"\\\"",
                "\"\\x41\"",
                "\"\\u12\"",
                "\"\\u12g4\"",
                "\"\\u+123\"",
                "\"\u{1f}\"",
                "\"a\nb\"",
                "\"a\0\"",
                "\u{b}1",
                "\u{a0}1",
                "/**/1",
                "1//",
                "\"\\ud800\\u12\"",
            ],
        );
    }

    #[test]
    fn a_control_character_is_refused_at_every_place_in_a_string() {
        for (place, byte) in (0..24).flat_map(|place| (0..=0x80).map(move |byte| (place, byte))) {
            let mut inner = ['x'; 24];
            inner[place] = char::from(byte);
            let text = format!("\"{}\"", String::from_iter(inner));
            match byte {
                0..0x20 | b'"' | b'\\' => assert_eq!(canonical(&text), Err(CanonicalizeError::Syntax), "{text:?}"),
                _ => assert_eq!(canonical(&text).as_ref(), Ok(&text)),
            }
        }
    }

    #[test]
    fn a_duplicate_name_is_refused_after_its_escapes_are_resolved() {
        assert_refused(
            CanonicalizeError::DuplicateName,
            &[
                r#"{"a":1,"a":1}"#,
                r#"{"a":1,"\u0061":2}"#,
                r#"{"\u0061":1,"\u0061":2}"#,
                r#"{"b":1,"a":2,"c":3,"b":4}"#,
                r#"[{"x":{"\/":1,"":2,"/":3}}]"#,
            ],
        );
        assert_forms(&[(r#"{"a":{"a":[{"a":1},{"a":1}]}}"#, r#"{"a":{"a":[{"a":1},{"a":1}]}}"#)]);
    }

    #[test]
    fn half_a_surrogate_pair_is_refused() {
        assert_refused(
            CanonicalizeError::LoneSurrogate,
            &[
                r#""\ud800""#,
                r#""\udc00""#,
                r#""\ud800\ud800""#,
                r#""\udc00\ud800""#,
                r#""\udc00\udc00""#,
                r#""\ud800x""#,
                r#"{"\uD83D":1}"#,
            ],
        );
    }

    #[test]
    fn bytes_that_are_not_utf_8_are_refused() {
        for text in [&b"\"\xff\""[..], b"\"\xc0\x80\"", b"\"\xed\xa0\x80\"", b"\xff\xfe{\0}\0", b"\"\xf0\x9f\x98"] {
            assert_eq!(canonical(text), Err(CanonicalizeError::InvalidUtf8));
        }
    }

    #[test]
    fn nesting_is_accepted_up_to_its_limit() {
        for (open, close) in [("[", "]"), ("{\"a\":", "}")] {
            let nested = |depth| format!("{}{}{}", open.repeat(depth), "1", close.repeat(depth));
            assert_eq!(canonical(nested(DEPTH_MAX)), Ok(nested(DEPTH_MAX)));
            assert_eq!(canonical(nested(DEPTH_MAX + 1)), Err(CanonicalizeError::TooDeep));
            assert_eq!(canonical(open.repeat(1_000_000)), Err(CanonicalizeError::TooDeep));
        }
    }

    #[test]
    fn an_include_keeps_its_values_and_the_containers_around_them() {
        let text = r#"{"z":1,"a":{"c":[1,2],"b":null},"e":[],"~/":0}"#;
        assert_eq!(selected(text, &[], &[]), r#"{"a":{"b":null,"c":[1,2]},"e":[],"z":1,"~/":0}"#);
        assert_eq!(selected(text, &[""], &[]), selected(text, &[], &[]));
        assert_eq!(selected(text, &["/z", "/a/b"], &[]), r#"{"a":{"b":null},"z":1}"#);
        assert_eq!(selected(text, &["/a", "/a/b"], &[]), r#"{"a":{"b":null,"c":[1,2]}}"#);
        assert_eq!(selected(text, &["/~0~1", "/e"], &[]), r#"{"e":[],"~/":0}"#);
        assert_eq!(selected(text, &["/*/b"], &[]), r#"{"a":{"b":null}}"#);
        assert_eq!(selected(text, &["/a/x", "/e/0", "/z/0"], &[]), "");
    }

    #[test]
    fn a_selected_array_element_keeps_its_index() {
        let text = r#"{"items":[{"id":1,"x":0},{"x":0},{"id":3},{"x":0}]}"#;
        assert_eq!(selected(text, &["/items/2"], &[]), r#"{"items":[null,null,{"id":3}]}"#);
        assert_eq!(selected(text, &["/items/*/id"], &[]), r#"{"items":[{"id":1},null,{"id":3}]}"#);
        assert_eq!(selected("[[1,2],[3]]", &["/*/1"], &[]), "[[null,2]]");
        assert_eq!(selected("[0,1]", &["/00", "/01", "/-", "/2", "/1 ", "/+1"], &[]), "");
    }

    #[test]
    fn an_exclude_removes_members_and_blanks_elements() {
        let text = r#"{"a":1,"b":{"a":2,"n":"x"},"l":[{"n":1,"m":2},3]}"#;
        assert_eq!(selected(text, &[], &["/a", "/b/n"]), r#"{"b":{"a":2},"l":[{"m":2,"n":1},3]}"#);
        assert_eq!(selected(text, &[], &["/*/n", "/l/*/n"]), r#"{"a":1,"b":{"a":2},"l":[{"m":2},3]}"#);
        assert_eq!(selected(text, &[], &["/l/*"]), r#"{"a":1,"b":{"a":2,"n":"x"},"l":[null,null]}"#);
        assert_eq!(selected(text, &["/b", "/l/1"], &["/b/*", "/l/0"]), r#"{"b":{},"l":[null,3]}"#);
        assert_eq!(selected(text, &["/b"], &[""]), "");
    }

    #[test]
    fn an_excluded_part_is_validated_too() {
        let selection = Selection { include: pointers(&["/a"]), exclude: pointers(&["/b"]) };
        let check = |text: &str| canonicalize_selected(text.as_bytes(), &selection).map(drop);
        assert_eq!(check(r#"{"a":1,"b":{"c":1,"c":2}}"#), Err(CanonicalizeError::DuplicateName));
        assert_eq!(check(r#"{"a":1,"b":"\ud800"}"#), Err(CanonicalizeError::LoneSurrogate));
        assert_eq!(check(r#"{"a":1,"b":01}"#), Err(CanonicalizeError::Syntax));
    }

    #[test]
    fn a_value_is_found_by_its_pointer() {
        // The document of RFC 6901 section 5, and its pointers.
        let text = r#"{"foo":["bar","baz"],"":0,"a/b":1,"c%d":2,"e^f":3,"g|h":4,"i\\j":5,"k\"l":6," ":7,"m~n":8}"#;
        let number = |text: &str| Some(ReferencedValue::Number(text.to_owned()));
        let form = canonical(text).expect("the text is canonicalisable");
        assert_eq!(found(text, ""), Some(ReferencedValue::Object(form)));
        assert_eq!(found(text, "/foo"), Some(ReferencedValue::Array(r#"["bar","baz"]"#.to_owned())));
        assert_eq!(found(text, "/foo/0"), Some(ReferencedValue::String("bar".to_owned())));
        let names = ["/", "/a~1b", "/c%d", "/e^f", "/g|h", "/i\\j", "/k\"l", "/ ", "/m~0n"];
        for (value, pointer) in names.iter().enumerate() {
            assert_eq!(found(text, pointer), number(&value.to_string()), "{pointer}");
        }
        assert_eq!(
            found(r#"{"\u006B":"\u00e9\n\ud83d\ude00"}"#, "/k"),
            Some(ReferencedValue::String("é\n😀".to_owned()))
        );
        assert_eq!(found(r#"{"k":1.50e1}"#, "/k"), number("15"));
        for (text, value) in [
            ("null", ReferencedValue::Null),
            ("true", ReferencedValue::Boolean(true)),
            ("false", ReferencedValue::Boolean(false)),
            ("\"\"", ReferencedValue::String(String::new())),
            ("[ ]", ReferencedValue::Array("[]".to_owned())),
            ("{ }", ReferencedValue::Object("{}".to_owned())),
        ] {
            assert_eq!(found(text, ""), Some(value.clone()), "{text}");
            assert_eq!(found(&format!("[0,{text}]"), "/1"), Some(value), "{text}");
        }
        for (text, pointer) in
            [("{}", "/k"), (r#"{"k":"v"}"#, "/k/0"), ("[1]", "/1"), ("[1]", "/*"), (r#"{"~1":1}"#, "/~1")]
        {
            assert_eq!(found(text, pointer), None, "{pointer}");
        }
        assert_eq!(found(r#"{"~1":1}"#, "/~01"), number("1"));
    }

    #[test]
    fn texts_that_are_no_pointers_are_refused() {
        assert_eq!(Pointer::parse("a"), Err(PointerError::NoLeadingSlash));
        assert_eq!(Pointer::parse("#/a"), Err(PointerError::NoLeadingSlash));
        for text in ["/~", "/a~2", "/~~0", "/a/b~"] {
            assert_eq!(Pointer::parse(text), Err(PointerError::BadEscape), "{text}");
        }
        assert_eq!(
            "/a~0/*".parse::<Pointer>().map(|pointer| (pointer.to_string(), pointer.is_pattern())),
            Ok(("/a~0/*".to_owned(), true))
        );
    }
}
