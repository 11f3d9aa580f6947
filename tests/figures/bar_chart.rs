//! Draws groups of horizontal bars as SVG. `make bench` and `make torture` draw their pictures with it.

use std::fmt::Write;

const WIDTH: usize = 880;
const MARGIN: usize = 24;
/// The place where all bars begin. The labels end before it.
const BARS_START: usize = 290;
/// The length of the longest bar of a group.
const BAR_MAX: f64 = 390.0;
const BAR_HEIGHT: usize = 14;
const LINE_HEIGHT: usize = 20;
const GROUP_HEAD: usize = 34;

/// Dark colours follow the reader's setting. The background is drawn, because the page around the picture may differ
/// from it.
const STYLE: &str = "\
text { font: 13px system-ui, 'Segoe UI', 'Liberation Sans', sans-serif; fill: #0b0b0b; }
.title { font-size: 17px; font-weight: 600; }
.group { font-weight: 600; }
.note { fill: #52514e; }
.label { text-anchor: end; }
.ground { fill: #fcfcfb; stroke: #e1e0d9; }
.ours { fill: #2a78d6; }
.other { fill: #a19f97; }
.range { stroke: #0b0b0b; stroke-width: 1.5; fill: none; }
@media (prefers-color-scheme: dark) {
  text { fill: #ffffff; }
  .note { fill: #c3c2b7; }
  .ground { fill: #1a1a19; stroke: #383835; }
  .ours { fill: #3987e5; }
  .other { fill: #6f6e68; }
  .range { stroke: #ffffff; }
}
";

pub struct BarChart {
    pub title: String,
    /// Lines below the title: the run, and how to read the bars.
    pub notes: Vec<String>,
    pub groups: Vec<BarGroup>,
}

/// Bars with a scale of their own.
pub struct BarGroup {
    pub title: String,
    pub bars: Vec<Bar>,
}

pub struct Bar {
    pub label: String,
    pub value: f64,
    /// The least and the most, drawn as a line.
    pub range: Option<(f64, f64)>,
    /// The text after the bar.
    pub text: String,
    pub is_ours: bool,
}

impl BarChart {
    pub fn to_svg(&self) -> String {
        let mut svg = Svg { y: MARGIN, elements: String::new() };
        svg.y += 12;
        svg.text("title", MARGIN, &self.title);
        for note in &self.notes {
            svg.y += LINE_HEIGHT;
            svg.text("note", MARGIN, note);
        }
        for group in &self.groups {
            svg.y += GROUP_HEAD;
            svg.text("group", MARGIN, &group.title);
            svg.y += 8;
            let reach = |bar: &Bar| bar.range.map_or(bar.value, |(_, most)| most.max(bar.value));
            let longest = group.bars.iter().map(reach).fold(0.0, f64::max);
            let scale = if longest > 0.0 { BAR_MAX / longest } else { 0.0 };
            group.bars.iter().for_each(|bar| svg.bar(bar, scale));
        }
        let (height, title, elements) = (svg.y + MARGIN, escape(&self.title), svg.elements);
        format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" role=\"img\" width=\"{WIDTH}\" height=\"{height}\" \
             viewBox=\"0 0 {WIDTH} {height}\">\n<title>{title}</title>\n<style>\n{STYLE}</style>\n\
             <rect class=\"ground\" x=\"0.5\" y=\"0.5\" width=\"{}\" height=\"{}\" rx=\"6\"/>\n{elements}</svg>\n",
            WIDTH - 1,
            height - 1,
        )
    }
}

/// A picture that grows downwards.
struct Svg {
    y: usize,
    elements: String,
}

impl Svg {
    fn text(&mut self, class: &str, x: usize, text: &str) {
        let (y, text) = (self.y, escape(text));
        writeln!(self.elements, "<text class=\"{class}\" x=\"{x}\" y=\"{y}\">{text}</text>").unwrap();
    }

    fn bar(&mut self, bar: &Bar, scale: f64) {
        let class = if bar.is_ours { "ours" } else { "other" };
        let (y, width) = (self.y, bar.value * scale);
        let (middle, start) = (y + BAR_HEIGHT / 2, BARS_START as f64);
        let shape = format!(
            "<rect class=\"{class}\" x=\"{BARS_START}\" y=\"{y}\" width=\"{width:.1}\" height=\"{BAR_HEIGHT}\"/>"
        );
        writeln!(self.elements, "{shape}").unwrap();
        let mut end = start + width;
        if let Some((least, most)) = bar.range {
            let (from, to) = (start + least * scale, start + most * scale);
            end = end.max(to);
            writeln!(self.elements, "<path class=\"range\" d=\"M{from:.1} {middle}H{to:.1}\"/>").unwrap();
        }
        self.y += BAR_HEIGHT - 3;
        self.text("label", BARS_START - 8, &bar.label);
        self.text("value", end as usize + 8, &bar.text);
        self.y += LINE_HEIGHT - BAR_HEIGHT + 3;
    }
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

/// Formats a count with a comma between the thousands.
pub fn thousands(count: usize) -> String {
    let digits = count.to_string();
    let groups = digits.as_bytes().rchunks(3).rev().map(|group| String::from_utf8_lossy(group).into_owned());
    groups.collect::<Vec<_>>().join(",")
}
