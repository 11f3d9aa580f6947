//! A model of JSON: values with exact decimals, their reader and their spellings.

use super::bytes_reader::BytesReader;

/// A JSON value.
#[derive(Clone, Debug, PartialEq)]
pub enum JsonValue {
    /// `[…]`.
    Array(Vec<JsonValue>),
    /// A number.
    Number(ExactDecimal),
    /// `{…}`, its members by their names.
    Object(Vec<(String, JsonValue)>),
    /// `"…"`.
    String(String),
    /// `true`, `false` or `null`.
    Word(&'static str),
}

/// A decimal without zeros at its ends: `digits` times ten to the power of `exponent`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExactDecimal {
    /// Whether it is below zero.
    pub negative: bool,
    /// The digits, none for zero.
    pub digits: String,
    /// The power of ten of the last digit.
    pub exponent: i128,
}

/// Reads a text; `None` if it is not JSON, is nested deeper than 128, or has a name twice in an object.
pub fn read(text: &[u8]) -> Option<JsonValue> {
    let mut reader = JsonReader { text: std::str::from_utf8(text).ok()?.chars().collect(), at: 0 };
    let value = reader.value(0)?;
    (reader.at == reader.text.len()).then_some(value)
}

struct JsonReader {
    text: Vec<char>,
    at: usize,
}

impl JsonReader {
    fn peek(&self) -> Option<char> {
        self.text.get(self.at).copied()
    }

    fn next(&mut self) -> Option<char> {
        let next = self.peek();
        self.at += 1;
        next
    }

    fn skip(&mut self, expected: char) -> bool {
        let is_there = self.peek() == Some(expected);
        self.at += usize::from(is_there);
        is_there
    }

    fn space(&mut self) {
        while matches!(self.peek(), Some(' ' | '\t' | '\r' | '\n')) {
            self.at += 1;
        }
    }

    /// Reads a value and the white space around it.
    fn value(&mut self, depth: usize) -> Option<JsonValue> {
        self.space();
        let value = match self.peek()? {
            '{' | '[' if depth == 128 => None,
            '{' => self.object(depth),
            '[' => self.array(depth),
            '"' => self.string().map(JsonValue::String),
            '-' | '0'..='9' => self.number().map(JsonValue::Number),
            _ => ["true", "false", "null"].into_iter().find_map(|word| {
                let end = self.at + word.len();
                let is_there = self.text.get(self.at..end).is_some_and(|text| text.iter().copied().eq(word.chars()));
                is_there.then(|| {
                    self.at = end;
                    JsonValue::Word(word)
                })
            }),
        }?;
        self.space();
        Some(value)
    }

    fn array(&mut self, depth: usize) -> Option<JsonValue> {
        let mut elements = Vec::new();
        self.skip('[');
        self.space();
        if self.skip(']') {
            return Some(JsonValue::Array(elements));
        }
        loop {
            elements.push(self.value(depth + 1)?);
            match self.next()? {
                ',' => {}
                ']' => return Some(JsonValue::Array(elements)),
                _ => return None,
            }
        }
    }

    fn object(&mut self, depth: usize) -> Option<JsonValue> {
        let mut members: Vec<(String, JsonValue)> = Vec::new();
        self.skip('{');
        self.space();
        if self.skip('}') {
            return Some(JsonValue::Object(members));
        }
        loop {
            self.space();
            let name = self.string()?;
            self.space();
            if members.iter().any(|(other, _)| *other == name) || !self.skip(':') {
                return None;
            }
            members.push((name, self.value(depth + 1)?));
            match self.next()? {
                ',' => {}
                '}' => break,
                _ => return None,
            }
        }
        members.sort_by(|(one, _), (other, _)| one.cmp(other));
        Some(JsonValue::Object(members))
    }

    fn string(&mut self) -> Option<String> {
        let mut units = Vec::new();
        if !self.skip('"') {
            return None;
        }
        loop {
            let unit = match self.next()? {
                '"' => return String::from_utf16(&units).ok(),
                '\\' => match self.next()? {
                    'b' => 8,
                    'f' => 12,
                    'n' => 10,
                    'r' => 13,
                    't' => 9,
                    'u' => self.code_unit()?,
                    escaped @ ('"' | '\\' | '/') => escaped as u16,
                    _ => return None,
                },
                '\0'..='\u{1f}' => return None,
                plain => {
                    units.extend_from_slice(plain.encode_utf16(&mut [0; 2]));
                    continue;
                }
            };
            units.push(unit);
        }
    }

    fn code_unit(&mut self) -> Option<u16> {
        (0..4).try_fold(0, |unit, _| {
            let digit = self.next()?.to_digit(16)?;
            Some(unit << 4 | u16::try_from(digit).expect("a digit"))
        })
    }

    fn digits(&mut self) -> Option<String> {
        let start = self.at;
        while matches!(self.peek(), Some('0'..='9')) {
            self.at += 1;
        }
        let digits: String = self.text[start..self.at].iter().collect();
        (!digits.is_empty()).then_some(digits)
    }

    fn number(&mut self) -> Option<ExactDecimal> {
        let negative = self.skip('-');
        let whole = self.digits()?;
        if whole.len() > 1 && whole.starts_with('0') {
            return None;
        }
        let fraction = if self.skip('.') { self.digits()? } else { String::new() };
        let mut exponent = 0;
        if self.skip('e') || self.skip('E') {
            let is_negative = !self.skip('+') && self.skip('-');
            let power = self.digits()?;
            // What does not fit is far beyond every limit.
            let power = power.trim_start_matches('0').parse().unwrap_or(if power.contains(|c| c != '0') {
                i128::MAX / 4
            } else {
                0
            });
            exponent = if is_negative { -power } else { power };
        }
        exponent -= fraction.len() as i128;
        let all = whole + &fraction;
        let digits = all.trim_start_matches('0').trim_end_matches('0');
        if digits.is_empty() {
            return Some(ExactDecimal { negative: false, digits: String::new(), exponent: 0 });
        }
        exponent += (all.len() - all.trim_end_matches('0').len()) as i128;
        Some(ExactDecimal { negative, digits: digits.to_owned(), exponent })
    }
}

/// Writes a value in a spelling that the bytes of `choices` choose.
pub fn spell(value: &JsonValue, choices: &mut BytesReader<'_>, output: &mut String) {
    space(choices, output);
    match value {
        JsonValue::Array(elements) => {
            output.push('[');
            for (place, element) in elements.iter().enumerate() {
                output.push_str(if place > 0 { "," } else { "" });
                spell(element, choices, output);
            }
            output.push(']');
        }
        JsonValue::Number(number) => spell_number(number, choices, output),
        JsonValue::Object(members) => {
            let mut members: Vec<_> = members.iter().collect();
            if !members.is_empty() {
                let places = members.len();
                members.rotate_left(usize::from(choices.byte()) % places);
            }
            if choices.byte().is_multiple_of(2) {
                members.reverse();
            }
            output.push('{');
            for (place, (name, value)) in members.into_iter().enumerate() {
                output.push_str(if place > 0 { "," } else { "" });
                space(choices, output);
                spell_string(name, choices, output);
                space(choices, output);
                output.push(':');
                spell(value, choices, output);
            }
            output.push('}');
        }
        JsonValue::String(text) => spell_string(text, choices, output),
        JsonValue::Word(word) => output.push_str(word),
    }
    space(choices, output);
}

fn space(choices: &mut BytesReader<'_>, output: &mut String) {
    output.push_str(["", " ", "\n", "\t\r\n "][usize::from(choices.byte() % 4)]);
}

fn spell_string(text: &str, choices: &mut BytesReader<'_>, output: &mut String) {
    output.push('"');
    for letter in text.chars() {
        let is_plain = letter >= ' ' && !matches!(letter, '"' | '\\');
        if is_plain && !choices.byte().is_multiple_of(4) {
            output.push(letter);
            continue;
        }
        for unit in letter.encode_utf16(&mut [0; 2]) {
            output.push_str(&format!("\\u{unit:04x}"));
        }
    }
    output.push('"');
}

fn spell_number(number: &ExactDecimal, choices: &mut BytesReader<'_>, output: &mut String) {
    if number.digits.is_empty() {
        return output.push_str(["0", "-0", "0.0", "0e7"][usize::from(choices.byte() % 4)]);
    }
    output.push_str(if number.negative { "-" } else { "" });
    let zeros = usize::from(choices.byte() % 4);
    let exponent = number.exponent - zeros as i128;
    match choices.byte() % 2 {
        0 => output.push_str(&format!("{}{}E{exponent:+}", number.digits, "0".repeat(zeros))),
        _ => {
            let exponent = exponent + (number.digits.len() + zeros) as i128;
            output.push_str(&format!("0.{}{}e{exponent}", number.digits, "0".repeat(zeros)));
        }
    }
}
