//! The places of a file where a mutant can stand, found by the syntax tree.

use std::collections::HashMap;
use std::ops::Range;

use syn::spanned::Spanned;
use syn::visit::{self, Visit};
use syn::{
    Arm, Block, Expr, ExprBinary, ExprConst, ExprRepeat, ExprStruct, ExprUnary, File, ImplItemConst, ImplItemFn,
    ItemConst, ItemFn, ItemStatic, ReturnType, Signature, TraitItemFn, Type, Variant,
};

use crate::rewrite::{Edit, Piece};

/// The places, by the range of what a mutant changes there. `None` where a switch cannot stand: in constants, in a
/// function that returns `impl Trait`, around a condition with `let`.
#[derive(Default)]
pub struct Places {
    binaries: HashMap<Range<usize>, Option<Range<usize>>>,
    unaries: HashMap<Range<usize>, Option<Range<usize>>>,
    fields: HashMap<Range<usize>, Option<Field>>,
    arms: HashMap<usize, Option<ArmPlace>>,
    guards: HashMap<usize, Option<Range<usize>>>,
    bodies: Vec<(Range<usize>, bool)>,
    constants: usize,
}

#[derive(Clone)]
struct Field {
    whole: Range<usize>,
    /// The start of what follows the field and its comma.
    next: usize,
}

#[derive(Clone)]
struct ArmPlace {
    pattern_end: usize,
    /// The end of the word `if`, and of the condition.
    guard: Option<(usize, usize)>,
}

impl Places {
    /// Finds them.
    pub fn of(file: &File) -> Self {
        let mut places = Self::default();
        places.visit_file(file);
        places
    }

    /// What to do for a mutant; `None` where it cannot be switched.
    pub fn edit(&self, genre: &str, range: Range<usize>, replacement: &str) -> Option<Edit> {
        let text = || Piece::Text(replacement.to_owned());
        Some(match genre {
            "BinaryOperator" => {
                let whole = self.binaries.get(&range)?.clone()?;
                let pieces = vec![Piece::Source(whole.start..range.start), text(), Piece::Source(range.end..whole.end)];
                Edit::Choice { whole, pieces }
            }
            "UnaryOperator" => {
                let whole = self.unaries.get(&range)?.clone()?;
                let pieces = vec![Piece::Source(range.end..whole.end)];
                Edit::Choice { whole, pieces }
            }
            "StructField" => {
                let Field { whole, next } = self.fields.get(&range)?.clone()?;
                let pieces = vec![Piece::Source(whole.start..range.start), Piece::Source(next..whole.end)];
                Edit::Choice { whole, pieces }
            }
            "MatchArmGuard" => Edit::Choice { whole: self.guards.get(&range.start)?.clone()?, pieces: vec![text()] },
            "MatchArm" => match self.arms.get(&range.start)?.clone()? {
                ArmPlace { pattern_end, guard: None } => Edit::Unless { at: pattern_end, word: " if", end: None },
                ArmPlace { guard: Some((after_if, end)), .. } => {
                    Edit::Unless { at: after_if, word: "", end: Some(end) }
                }
            },
            "FnValue" => {
                let inside = |(body, _): &&(Range<usize>, bool)| body.start <= range.start && range.end <= body.end;
                let (body, is_switchable) = self.bodies.iter().filter(inside).min_by_key(|(body, _)| body.len())?;
                is_switchable.then(|| Edit::Return { at: body.start + 1, value: replacement.to_owned() })?
            }
            _ => return None,
        })
    }

    fn unless_constant<T>(&self, place: T) -> Option<T> {
        (self.constants == 0).then_some(place)
    }

    fn in_constant(&mut self, visit: impl FnOnce(&mut Self)) {
        self.constants += 1;
        visit(self);
        self.constants -= 1;
    }

    fn function(&mut self, signature: &Signature, block: &Block, visit: impl FnOnce(&mut Self)) {
        let is_hidden = matches!(&signature.output, ReturnType::Type(_, kind) if matches!(**kind, Type::ImplTrait(_) | Type::Never(_)));
        let is_constant = signature.constness.is_some();
        self.bodies.push((block.span().byte_range(), !is_constant && !is_hidden));
        // A function in a constant is none.
        let outside = std::mem::replace(&mut self.constants, usize::from(is_constant));
        visit(self);
        self.constants = outside;
    }
}

/// Whether a `let` stands in the condition.
fn has_let(expression: &Expr) -> bool {
    match expression {
        Expr::Let(_) => true,
        Expr::Binary(binary) => has_let(&binary.left) || has_let(&binary.right),
        Expr::Paren(inner) => has_let(&inner.expr),
        _ => false,
    }
}

impl<'ast> Visit<'ast> for Places {
    fn visit_expr_binary(&mut self, binary: &'ast ExprBinary) {
        let is_condition = has_let(&binary.left) || has_let(&binary.right);
        let whole = binary.span().byte_range();
        let place = self.unless_constant(whole).filter(|_| !is_condition);
        self.binaries.insert(binary.op.span().byte_range(), place);
        visit::visit_expr_binary(self, binary);
    }

    fn visit_expr_unary(&mut self, unary: &'ast ExprUnary) {
        let place = self.unless_constant(unary.span().byte_range());
        self.unaries.insert(unary.op.span().byte_range(), place);
        visit::visit_expr_unary(self, unary);
    }

    fn visit_expr_struct(&mut self, expression: &'ast ExprStruct) {
        let whole = expression.span().byte_range();
        for pair in expression.fields.pairs() {
            let field = pair.value().span().byte_range();
            let next = pair.punct().map_or(field.end, |comma| comma.span().byte_range().end);
            let place = self.unless_constant(Field { whole: whole.clone(), next });
            self.fields.insert(field, place);
        }
        visit::visit_expr_struct(self, expression);
    }

    fn visit_arm(&mut self, arm: &'ast Arm) {
        let guard = arm.guard.as_ref();
        if let Some((_, condition)) = guard {
            let whole = condition.span().byte_range();
            let place = self.unless_constant(whole.clone()).filter(|_| !has_let(condition));
            self.guards.insert(whole.start, place);
        }
        let guard = guard.map(|(word, condition)| (word.span().byte_range().end, condition.span().byte_range().end));
        let place = self.unless_constant(ArmPlace { pattern_end: arm.pat.span().byte_range().end, guard });
        self.arms.insert(arm.span().byte_range().start, place);
        visit::visit_arm(self, arm);
    }

    fn visit_item_fn(&mut self, item: &'ast ItemFn) {
        self.function(&item.sig, &item.block, |places| visit::visit_item_fn(places, item));
    }

    fn visit_impl_item_fn(&mut self, item: &'ast ImplItemFn) {
        self.function(&item.sig, &item.block, |places| visit::visit_impl_item_fn(places, item));
    }

    fn visit_trait_item_fn(&mut self, item: &'ast TraitItemFn) {
        if let Some(block) = &item.default {
            self.function(&item.sig, block, |places| visit::visit_trait_item_fn(places, item));
        }
    }

    fn visit_item_const(&mut self, item: &'ast ItemConst) {
        self.in_constant(|places| visit::visit_item_const(places, item));
    }

    fn visit_item_static(&mut self, item: &'ast ItemStatic) {
        self.in_constant(|places| visit::visit_item_static(places, item));
    }

    fn visit_impl_item_const(&mut self, item: &'ast ImplItemConst) {
        self.in_constant(|places| visit::visit_impl_item_const(places, item));
    }

    fn visit_expr_const(&mut self, block: &'ast ExprConst) {
        self.in_constant(|places| visit::visit_expr_const(places, block));
    }

    fn visit_expr_repeat(&mut self, array: &'ast ExprRepeat) {
        self.visit_expr(&array.expr);
        self.in_constant(|places| places.visit_expr(&array.len));
    }

    fn visit_variant(&mut self, variant: &'ast Variant) {
        self.in_constant(|places| visit::visit_variant(places, variant));
    }

    fn visit_type(&mut self, kind: &'ast Type) {
        self.in_constant(|places| visit::visit_type(places, kind));
    }
}
