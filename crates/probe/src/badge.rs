//! The verdict as a badge: a small picture in SVG, without scripts, fonts or links.

use super::finding::Conclusion;

/// The width of a character of the font at this size, at most, in pixels.
const CHAR_WIDTH: usize = 7;
/// The space on both sides of a text, in pixels.
const PADDING: usize = 12;

/// Draws two halves: the label, and the verdict on its colour.
pub(crate) fn draw(label: &str, conclusion: Conclusion) -> String {
    let (verdict, colour) = match conclusion {
        Conclusion::Info | Conclusion::Holds => ("holds", "#2e7d32"),
        Conclusion::CannotTell => ("cannot tell", "#757575"),
        Conclusion::Broken => ("broken", "#c62828"),
    };
    let width = |text: &str| text.len() * CHAR_WIDTH + PADDING;
    let (left, right) = (width(label), width(verdict));
    let (all, left_middle, right_middle) = (left + right, left / 2, left + right / 2);
    format!(
        r##"<svg xmlns="http://www.w3.org/2000/svg" width="{all}" height="20" role="img" aria-label="{label}: {verdict}">
<title>{label}: {verdict}</title>
<rect width="{left}" height="20" fill="#37474f"/>
<rect x="{left}" width="{right}" height="20" fill="{colour}"/>
<g fill="#fff" font-family="Verdana,DejaVu Sans,sans-serif" font-size="11" text-anchor="middle">
<text x="{left_middle}" y="14">{label}</text>
<text x="{right_middle}" y="14">{verdict}</text>
</g>
</svg>
"##
    )
}
