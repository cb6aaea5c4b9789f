//! Token level rewriting of preprocessed Metal Shading Language into C++17.
//!
//! Input: the text printed by `clang++ -E` (line markers kept, so that every
//! later diagnostic still points into the .metal file).
//! Output: C++ text with address spaces, attributes and kernel qualifiers
//! removed, threadgroup variables moved into the emulator's arena, and a
//! registration function listing every entry point with its bindings.
//! 1220 lines because it is one pass over one stream of tokens whose parts mean nothing alone.

use crate::Failure;
use std::collections::{BTreeSet, HashMap};
use std::fmt::Write;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum K {
    Id,
    Num,
    Str,
    Punct,
    Line,
}

#[derive(Clone, Debug)]
struct Tok {
    k: K,
    s: String,
    ws: String,
    line: u32,
    file: u32,
}

#[derive(Clone, Debug)]
pub struct Diag {
    pub file: String,
    pub line: u32,
    pub msg: String,
}

#[derive(Clone, Debug)]
struct Bind {
    code: String,
    optional: bool,
}

#[derive(Clone, Debug)]
pub struct Kernel {
    pub host_name: String,
    expr: String,
    base: String,
}

pub struct Output {
    pub cpp: String,
    pub kernels: Vec<String>,
    pub lints: Vec<Diag>,
}

const SPACES: [&str; 5] = ["device", "constant", "thread", "threadgroup", "ray_data"];

fn is_space(s: &str) -> bool {
    SPACES.contains(&s)
}

fn tokenize(src: &str) -> (Vec<Tok>, Vec<String>) {
    let b: Vec<char> = src.chars().collect();
    let mut files = vec![String::from("<input>")];
    let (mut i, mut line, mut file) = (0usize, 1u32, 0u32);
    let mut ws = String::new();
    let mut out = Vec::new();
    let mut bol = true;
    while i < b.len() {
        let c = b[i];
        if c == '\n' {
            ws.push(c);
            line += 1;
            bol = true;
            i += 1;
            continue;
        }
        if c.is_whitespace() {
            ws.push(c);
            i += 1;
            continue;
        }
        let st = i;
        let k;
        if c == '#' && bol {
            while i < b.len() && b[i] != '\n' {
                i += 1;
            }
            let text: String = b[st..i].iter().collect();
            let parts: Vec<&str> = text.splitn(3, ' ').collect();
            if parts.len() >= 3
                && parts[0] == "#"
                && let Ok(n) = parts[1].parse::<u32>()
            {
                line = n.wrapping_sub(1);
                if let Some(name) = parts[2].split('"').nth(1) {
                    file = match files.iter().position(|f| f == name) {
                        Some(p) => p as u32,
                        None => {
                            files.push(name.to_string());
                            files.len() as u32 - 1
                        }
                    };
                }
            }
            out.push(Tok { k: K::Line, s: text, ws: std::mem::take(&mut ws), line, file });
            bol = false;
            continue;
        }
        bol = false;
        if c.is_alphabetic() || c == '_' {
            while i < b.len() && (b[i].is_alphanumeric() || b[i] == '_') {
                i += 1;
            }
            k = K::Id;
        } else if c.is_ascii_digit() || (c == '.' && i + 1 < b.len() && b[i + 1].is_ascii_digit()) {
            let hex = c == '0' && i + 1 < b.len() && (b[i + 1] == 'x' || b[i + 1] == 'X');
            while i < b.len() {
                let d = b[i];
                let signs_exponent = (d == '+' || d == '-')
                    && matches!(b[i - 1], 'e' | 'E' | 'p' | 'P')
                    && (!hex || matches!(b[i - 1], 'p' | 'P'));
                if !(d.is_alphanumeric() || d == '.' || d == '_' || signs_exponent) {
                    break;
                }
                i += 1;
            }
            k = K::Num;
        } else if c == '"' || c == '\'' {
            i += 1;
            while i < b.len() && b[i] != c {
                if b[i] == '\\' {
                    i += 1;
                }
                i += 1;
            }
            i += 1;
            k = K::Str;
        } else {
            let two: String = b[i..(i + 2).min(b.len())].iter().collect();
            i += if [
                "::", "->", "[[", "]]", "&&", "||", "==", "!=", "<=", ">=", "+=", "-=", "*=", "/=",
                "%=", "^=", "|=", "&=", "++", "--", "<<",
            ]
            .contains(&two.as_str())
            {
                2
            } else {
                1
            };
            k = K::Punct;
        }
        let s: String = b[st..i.min(b.len())].iter().collect();
        out.push(Tok { k, s, ws: std::mem::take(&mut ws), line, file });
    }
    // "]]" may close two subscripts: keep it as an attribute end only where a "[[" is open.
    let mut fixed = Vec::with_capacity(out.len());
    let mut stack: Vec<&'static str> = Vec::new();
    let mut idx = 0;
    while idx < out.len() {
        let t = &out[idx];
        match t.s.as_str() {
            "[[" if t.k == K::Punct => {
                // `a[[...` cannot start a subscript of a lambda in MSL: it is an attribute.
                stack.push("[[");
                fixed.push(t.clone());
            }
            "[" if t.k == K::Punct => {
                stack.push("[");
                fixed.push(t.clone());
            }
            "]" if t.k == K::Punct => {
                // `] ]` written with a space closes an attribute too
                if stack.last() == Some(&"[[") {
                    if idx + 1 < out.len() && out[idx + 1].s == "]" {
                        stack.pop();
                        let mut n = t.clone();
                        n.s = "]]".into();
                        fixed.push(n);
                        idx += 2;
                        continue;
                    }
                } else {
                    stack.pop();
                }
                fixed.push(t.clone());
            }
            "]]" if t.k == K::Punct => {
                if stack.last() == Some(&"[[") {
                    stack.pop();
                    fixed.push(t.clone());
                } else {
                    stack.pop();
                    let mut a = t.clone();
                    a.s = "]".into();
                    fixed.push(a.clone());
                    if stack.last() == Some(&"[[") && idx + 1 < out.len() && out[idx + 1].s == "]" {
                        stack.pop();
                        a.s = "]]".into();
                        a.ws.clear();
                        fixed.push(a);
                        idx += 2;
                        continue;
                    }
                    a.ws.clear();
                    stack.pop();
                    fixed.push(a);
                }
            }
            _ => fixed.push(t.clone()),
        }
        idx += 1;
    }
    (fixed, files)
}

fn fix_number(t: &mut Tok) {
    let s = &t.s;
    let low = s.to_ascii_lowercase();
    if low.starts_with("0x") {
        return;
    }
    let float = low.contains('.') || low.contains('e');
    if !float && !low.ends_with('h') {
        if low.ends_with('f') {
            // 1f is not C++; MSL does not accept it either
        }
        return;
    }
    if let Some(x) = low.strip_suffix("bf") {
        t.s = format!("bfloat({x}f)");
    } else if let Some(x) = low.strip_suffix('h') {
        let x = if x.contains('.') || x.contains('e') { x.to_string() } else { format!("{x}.0") };
        t.s = format!("half({x}f)");
    } else if !low.ends_with('f') && !low.ends_with('l') {
        t.s.push('f');
    }
}

fn text(ts: &[Tok]) -> String {
    let mut s = String::new();
    for t in ts {
        s.push_str(&t.ws);
        s.push_str(&t.s);
    }
    s
}

fn flat(ts: &[Tok]) -> String {
    let mut s = String::new();
    for t in ts {
        if !s.is_empty() {
            s.push(' ');
        }
        s.push_str(&t.s);
    }
    s
}

/// Index just past the bracket that closes the one at `i`.
fn close(ts: &[Tok], i: usize) -> usize {
    let mut d = 0i32;
    let mut j = i;
    while j < ts.len() {
        if ts[j].k == K::Punct {
            match ts[j].s.as_str() {
                "(" | "[" | "{" => d += 1,
                "[[" => d += 2,
                ")" | "]" | "}" => d -= 1,
                "]]" => d -= 2,
                _ => {}
            }
        }
        j += 1;
        if d <= 0 {
            return j;
        }
    }
    j
}

/// `constant` after the parameter list of a member function means const, but a constructor cannot be const.
fn after_ctor(ts: &[Tok], i: usize) -> bool {
    if i == 0 || ts[i - 1].s != ")" {
        return false;
    }
    if i + 1 < ts.len() && ts[i + 1].s == ":" {
        return true;
    }
    let (mut d, mut j) = (0, i);
    while j > 0 {
        j -= 1;
        match ts[j].s.as_str() {
            ")" => d += 1,
            "(" => d -= 1,
            _ => {}
        }
        if d == 0 {
            break;
        }
    }
    j >= 1
        && ts[j - 1].k == K::Id
        && (j < 2
            || matches!(
                ts[j - 2].s.as_str(),
                "constexpr" | "explicit" | ";" | "{" | "}" | ">" | ":"
            ))
}

/// Removes attributes and address spaces from a slice of plain code.
fn plain_as(ts: &[Tok], spaces: bool) -> Vec<Tok> {
    let mut out = Vec::new();
    let mut i = 0;
    let mut carry = String::new();
    while i < ts.len() {
        let mut t = ts[i].clone();
        if t.s == "[[" && t.k == K::Punct {
            carry.push_str(&t.ws);
            let e = close(ts, i);
            for x in &ts[i + 1..e] {
                carry.push_str(&x.ws);
            }
            i = e;
            continue;
        }
        if spaces
            && t.k == K::Id
            && let Some(w) = spaced(&t.s)
        {
            t.s = w.into();
        }
        if t.k == K::Id {
            match t.s.as_str() {
                "device" | "thread" | "threadgroup" | "kernel" | "ray_data" => {
                    carry.push_str(&t.ws);
                    i += 1;
                    continue;
                }
                // a constructor cannot be const
                "constant" if after_ctor(ts, i) => {
                    carry.push_str(&t.ws);
                    i += 1;
                    continue;
                }
                "coherent" if i + 1 < ts.len() && ts[i + 1].s == "(" => {
                    carry.push_str(&t.ws);
                    i = close(ts, i + 1);
                    continue;
                }
                "constant" => t.s = "const".into(),
                "static_cast" => t.s = "msl_static_cast".into(),
                _ => {}
            }
        }
        if t.k == K::Num {
            fix_number(&mut t);
        }
        if !carry.is_empty() {
            let c = std::mem::take(&mut carry);
            t.ws = format!("{c}{}", t.ws);
        }
        out.push(t);
        i += 1;
    }
    out
}

fn split_commas(ts: &[Tok]) -> Vec<Vec<Tok>> {
    let (mut d, mut a) = (0i32, 0i32);
    let mut cur = Vec::new();
    let mut out = Vec::new();
    for t in ts {
        if t.k == K::Line {
            continue;
        }
        if t.k == K::Punct {
            match t.s.as_str() {
                "(" | "{" | "[" => d += 1,
                "[[" => d += 2,
                ")" | "}" | "]" => d -= 1,
                "]]" => d -= 2,
                "<" if d == 0 => a += 1,
                ">" if d == 0 => a -= 1,
                "," if d == 0 && a <= 0 => {
                    out.push(std::mem::take(&mut cur));
                    continue;
                }
                _ => {}
            }
        }
        cur.push(t.clone());
    }
    if !cur.is_empty() {
        out.push(cur);
    }
    out
}

fn attrs(ts: &[Tok]) -> Vec<(String, Vec<Tok>)> {
    let mut out = Vec::new();
    let mut i = 0;
    while i < ts.len() {
        if ts[i].s == "[[" && ts[i].k == K::Punct {
            let e = close(ts, i);
            for item in split_commas(&ts[i + 1..e - 1]) {
                if item.is_empty() {
                    continue;
                }
                let name = item[0].s.clone();
                let args = if item.len() > 2 { item[2..item.len() - 1].to_vec() } else { vec![] };
                out.push((name, args));
            }
            i = e;
        } else {
            i += 1;
        }
    }
    out
}

fn bindings(params: &[Tok], fname: &str) -> Result<Vec<Bind>, Failure> {
    let ps = split_commas(params);
    let mut used_b = BTreeSet::new();
    let mut used_t = BTreeSet::new();
    for p in &ps {
        for (n, a) in attrs(p) {
            let v = flat(&a).parse::<u32>();
            if n == "buffer" {
                if let Ok(v) = v
                    && !used_b.insert(v)
                {
                    return Err(Failure(format!("kernel {fname}: buffer({v}) is bound twice")));
                }
            } else if n == "threadgroup"
                && let Ok(v) = v
            {
                used_t.insert(v);
            }
        }
    }
    let mut out = Vec::new();
    for p in &ps {
        let at = attrs(p);
        let optional = at.iter().any(|(n, _)| n == "function_constant");
        let mut code = None;
        for (n, a) in &at {
            code = match n.as_str() {
                "buffer" => Some(format!("{{msl_rt::B_BUFFER, {}}}", flat(a))),
                "threadgroup" => Some(format!("{{msl_rt::B_TGMEM, {}}}", flat(a))),
                "function_constant" | "maybe_unused" | "access" => continue,
                other => Some(format!("{{msl_rt::B_{other}, 0}}")),
            };
        }
        let code = match code {
            Some(c) => c,
            None => {
                // no attribute: indices are handed out in order
                let tg = p.iter().any(|t| t.s == "threadgroup");
                let set = if tg { &mut used_t } else { &mut used_b };
                let mut n = 0u32;
                while set.contains(&n) {
                    n += 1;
                }
                set.insert(n);
                format!("{{msl_rt::{}, {n}}}", if tg { "B_TGMEM" } else { "B_BUFFER" })
            }
        };
        out.push(Bind { code, optional });
    }
    Ok(out)
}

fn lint_params(params: &[Tok], files: &[String], out: &mut Vec<Diag>) {
    for p in split_commas(params) {
        let mut a = 0;
        let mut ptr = None;
        for t in &p {
            match t.s.as_str() {
                "<" => a += 1,
                ">" => a -= 1,
                "*" | "&" if a == 0 && t.k == K::Punct => ptr = ptr.or(Some(t.clone())),
                "=" => break,
                _ => {}
            }
        }
        if let Some(t) = ptr
            && !p.iter().any(|x| is_space(&x.s))
        {
            out.push(Diag {
                file: files[t.file as usize].clone(),
                line: t.line,
                msg: format!(
                    "pointer or reference parameter without an address space: `{}`",
                    flat(&p)
                ),
            });
        }
    }
}

/// If `ts` (a statement without its `;`) ends with a function name or template id, returns (expression, base name).
fn tail_name(ts: &[Tok]) -> Option<(usize, usize)> {
    let mut e = ts.len();
    while e > 0 && ts[e - 1].k == K::Line {
        e -= 1;
    }
    if e == 0 {
        return None;
    }
    if ts[e - 1].s == ")" {
        let mut d = 0;
        let mut j = e;
        while j > 0 {
            j -= 1;
            match ts[j].s.as_str() {
                ")" => d += 1,
                "(" => d -= 1,
                _ => {}
            }
            if d == 0 {
                break;
            }
        }
        e = j;
    }
    let end = e;
    if e > 0 && ts[e - 1].s == ">" {
        let (mut d, mut p) = (0, 0);
        let mut j = e;
        while j > 0 {
            j -= 1;
            match ts[j].s.as_str() {
                ")" => p += 1,
                "(" => p -= 1,
                ">" if p == 0 => d += 1,
                "<" if p == 0 => d -= 1,
                _ => {}
            }
            if d == 0 {
                break;
            }
        }
        e = j;
    }
    if e == 0 || ts[e - 1].k != K::Id {
        return None;
    }
    Some((e - 1, end))
}

/// Second form of the text: address spaces kept, as C++ for OpenCL spells them. Only for checking.
fn spaced(s: &str) -> Option<&'static str> {
    Some(match s {
        "device" => "__global",
        "constant" => "__constant",
        "thread" => "__private",
        "threadgroup" => "__local",
        _ => return None,
    })
}

pub fn rewrite(pre: &str, module: &str) -> Result<Output, Failure> {
    rewrite_as(pre, module, false)
}

pub fn rewrite_as(pre: &str, module: &str, spaces: bool) -> Result<Output, Failure> {
    let plain = |ts: &[Tok]| plain_as(ts, spaces);
    let (ts, files) = tokenize(pre);
    let mut o = String::new();
    let mut lints: Vec<Diag> = Vec::new();
    let mut defs: HashMap<String, Vec<Bind>> = HashMap::new();
    let mut kernels: Vec<Kernel> = Vec::new();
    let mut tg_count = 0;
    let mut i = 0;
    // start of statement: previous significant token closes one
    let mut stmt_start = true;
    let mut paren = 0i32;
    let mut class_scope: Vec<bool> = Vec::new();
    let mut braces: Vec<bool> = Vec::new(); // true: function or class body, false: namespace
    let mut pending_template = false;
    let mut seen_heads: Vec<std::collections::HashSet<String>> = vec![Default::default()];
    let mut prev: String = String::new();
    let mut skip_nl = false;
    let mut host: Option<String> = None; // host_name seen, kernel not yet
    while i < ts.len() {
        let t = &ts[i];
        if t.k == K::Line {
            // every marker must start a line
            if !o.ends_with('\n') {
                o.push('\n');
            }
            o.push_str(t.s.as_str());
            o.push('\n');
            skip_nl = true; // the newline that followed it is in the next token's whitespace
            i += 1;
            continue;
        }
        let ws = if std::mem::take(&mut skip_nl) {
            t.ws.find('\n').map(|p| t.ws[p + 1..].to_string()).unwrap_or_default()
        } else {
            t.ws.clone()
        };

        // ---- overloads that differ in address space only: keep the first ------------------
        if stmt_start
            && paren == 0
            && !t.s.is_empty()
            && !braces.last().copied().unwrap_or(false)
                | class_scope.last().copied().unwrap_or(false)
        {
            let mut e = i;
            while e < ts.len() && ts[e].s != ";" && ts[e].s != "{" && ts[e].s != "}" {
                if ts[e].s == "(" || ts[e].s == "[[" {
                    e = close(&ts, e);
                } else {
                    e += 1;
                }
            }
            let head: Vec<Tok> =
                ts[i..e.min(ts.len())].iter().filter(|x| x.k != K::Line).cloned().collect();
            let spaced = head.iter().any(|x| is_space(&x.s));
            let body = e < ts.len() && ts[e].s == "{";
            let defaulted = head.iter().any(|x| x.s == "default");
            let is_kernel = head.iter().any(|x| x.s == "kernel");
            let fn_or_spec =
                head.iter().any(|x| x.s == ")") || head.iter().any(|x| x.s == "struct");
            if !is_kernel && fn_or_spec && (body || defaulted) {
                let mut p = plain(&head);
                if defaulted {
                    p.retain(|x| x.s != "const");
                }
                p.dedup_by(|a, b| a.s == "const" && b.s == "const");
                let key = flat(&p);
                let dup = !seen_heads.last_mut().expect("one scope is always open").insert(key);
                if dup && spaced && !spaces {
                    let mut end = e;
                    if body {
                        end = close(&ts, e);
                        if head.iter().any(|x| x.s == "struct") && !head.iter().any(|x| x.s == ")")
                        {
                            end += 1; // the semicolon
                        }
                    } else {
                        end += 1;
                    }
                    // keep the line count
                    for x in &ts[i..end.min(ts.len())] {
                        o.push_str(&x.ws.chars().filter(|c| *c == '\n').collect::<String>());
                    }
                    i = end;
                    prev = "}".into();
                    stmt_start = true;
                    pending_template = false;
                    continue;
                }
                if defaulted && spaced && !spaces {
                    let mut p2 = p;
                    if let Some(f) = p2.first_mut() {
                        f.ws.clear();
                    }
                    o.push_str(&ws);
                    o.push_str(&text(&p2));
                    i = e;
                    stmt_start = false;
                    continue;
                }
            }
        }

        // ---- namespace-scope function constants -------------------------------------------
        if stmt_start
            && paren == 0
            && (t.s == "constant" || t.s == "constexpr" || t.s == "static")
            && !braces.iter().any(|b| *b)
        {
            let mut e = i;
            while e < ts.len() && ts[e].s != ";" && ts[e].s != "{" && ts[e].s != "(" {
                if ts[e].s == "[[" {
                    e = close(&ts, e);
                } else {
                    e += 1;
                }
            }
            if e < ts.len() && ts[e].s == ";" {
                let st = &ts[i..e];
                if let Some((_, a)) = attrs(st).into_iter().find(|(n, _)| n == "function_constant")
                {
                    let body = plain(st);
                    let body: Vec<Tok> = body
                        .into_iter()
                        .filter(|x| x.s != "const" && x.s != "constexpr" && x.s != "static")
                        .collect();
                    let name = body.last().map(|x| x.s.clone()).unwrap_or_default();
                    if spaces {
                        let body: Vec<Tok> =
                            body.into_iter().filter(|x| !x.s.starts_with("__constant")).collect();
                        let _ = write!(o, "{ws}extern __constant {};", flat(&body));
                        i = e + 1;
                        stmt_start = true;
                        prev = ";".into();
                        continue;
                    }
                    let _ = write!(
                        o,
                        "{ws}static {}; static ::msl_rt::fc_reg msl_fc_{name}({}, &{name}, sizeof({name}), \"{name}\");",
                        flat(&body),
                        flat(&a)
                    );
                    i = e + 1;
                    stmt_start = true;
                    prev = ";".into();
                    continue;
                }
            }
        }

        // ---- explicit instantiation -----------------------------------------------------
        if stmt_start && t.s == "template" && i + 1 < ts.len() && ts[i + 1].s != "<" {
            let mut e = i;
            while e < ts.len() && ts[e].s != ";" {
                if ts[e].s == "(" || ts[e].s == "[[" || ts[e].s == "{" {
                    e = close(&ts, e);
                } else {
                    e += 1;
                }
            }
            let st = &ts[i..e];
            let mut is_kernel = st.iter().any(|x| x.s == "kernel");
            let mut host = None;
            for (n, a) in attrs(st) {
                match n.as_str() {
                    "host_name" => {
                        // adjacent literals concatenate
                        host = Some(
                            a.iter()
                                .filter(|x| x.k == K::Str)
                                .map(|x| x.s.trim_matches('"').to_string())
                                .collect::<String>(),
                        );
                        is_kernel = true;
                    }
                    "kernel" => is_kernel = true,
                    _ => {}
                }
            }
            let body = plain(st);
            o.push_str(&ws);
            let mut b2 = body.clone();
            if let Some(f) = b2.first_mut() {
                f.ws = String::new();
            }
            o.push_str(&text(&b2));
            o.push(';');
            if is_kernel && let Some((s, en)) = tail_name(&body) {
                let expr = flat(
                    &body[s..en].iter().filter(|x| x.k != K::Line).cloned().collect::<Vec<_>>(),
                );
                let base = body[s].s.clone();
                // with a parameter list the type is known: needed where arguments are deduced
                let expr = if en < body.len() && body[en].s == "(" {
                    let ps = split_commas(&body[en + 1..close(&body, en) - 1]);
                    let ps: Vec<String> = ps.iter().map(|p| flat(p)).collect();
                    format!("static_cast<void (*)({})>({expr})", ps.join(", "))
                } else {
                    expr
                };
                kernels.push(Kernel {
                    host_name: host.unwrap_or_else(|| base.clone()),
                    expr,
                    base,
                });
            }
            i = e + 1;
            stmt_start = true;
            prev = ";".into();
            continue;
        }
        if stmt_start && t.s == "template" {
            pending_template = true;
        }

        // ---- attributes ------------------------------------------------------------------
        let mut host_attr: Option<String> = None;
        let mut kernel_here = t.k == K::Id && t.s == "kernel";
        if t.k == K::Punct && t.s == "[[" {
            let e = close(&ts, i);
            for (n, a) in attrs(&ts[i..e]) {
                if n == "kernel" {
                    kernel_here = true;
                }
                if n == "host_name" {
                    host_attr = Some(
                        a.iter()
                            .filter(|x| x.k == K::Str)
                            .map(|x| x.s.trim_matches('"').to_string())
                            .collect(),
                    );
                }
            }
            o.push_str(&ws);
            for x in &ts[i + 1..e] {
                o.push_str(&x.ws.chars().filter(|c| *c == '\n').collect::<String>());
            }
            if let Some(h) = host_attr {
                host = Some(h);
            }
            if !kernel_here {
                i = e;
                continue;
            }
            i = e;
        } else if kernel_here {
            o.push_str(&ws);
            i += 1;
        }
        if kernel_here && paren == 0 {
            // skip further attributes, find `void name (`
            let mut j = i;
            while j < ts.len() && ts[j].s != "(" && ts[j].s != ";" {
                if ts[j].s == "[[" {
                    let e = close(&ts, j);
                    for (n, a) in attrs(&ts[j..e]) {
                        if n == "host_name" {
                            host = Some(
                                a.iter()
                                    .filter(|x| x.k == K::Str)
                                    .map(|x| x.s.trim_matches('"').to_string())
                                    .collect(),
                            );
                        }
                    }
                    j = e;
                } else {
                    j += 1;
                }
            }
            if j < ts.len() && ts[j].s == "(" && ts[j - 1].k == K::Id {
                let name = ts[j - 1].s.clone();
                let e = close(&ts, j);
                let params = &ts[j + 1..e - 1];
                lint_params(params, &files, &mut lints);
                let bs = bindings(params, &name)?;
                defs.insert(name.clone(), bs);
                let host = host.take();
                let is_def = e < ts.len() && ts[e].s == "{";
                if !pending_template && is_def {
                    kernels.push(Kernel {
                        host_name: host.unwrap_or_else(|| name.clone()),
                        expr: name.clone(),
                        base: name,
                    });
                }
                let mut head = plain(&ts[i..e]);
                if head.iter().any(|x| x.k == K::Line) {
                    head.retain(|x| x.k != K::Line);
                }
                o.push_str(&text(&head));
                prev = ")".into();
                stmt_start = false;
                pending_template = false;
                i = e;
                continue;
            }
            continue;
        }

        // ---- threadgroup variables ---------------------------------------------------------
        let in_fn = braces.iter().any(|b| *b);
        if stmt_start
            && paren == 0
            && in_fn
            && (t.s == "threadgroup" || t.s == "alignas" || t.s == "volatile" || t.s == "static")
        {
            let mut e = i;
            let mut a = 0;
            while e < ts.len() && !(ts[e].s == ";" && a <= 0) {
                if ts[e].s == "(" || ts[e].s == "{" || ts[e].s == "[[" {
                    e = close(&ts, e);
                } else {
                    e += 1;
                }
                a = 0;
            }
            let st: Vec<Tok> = ts[i..e].iter().filter(|x| x.k != K::Line).cloned().collect();
            let has =
                st.iter().take_while(|x| x.s != "=" && x.s != "*").any(|x| x.s == "threadgroup");
            if has {
                let body = plain(&st);
                let parts = split_commas(&body);
                let mut names = Vec::new();
                let mut pointer = false;
                for p in &parts {
                    let (mut a, mut d) = (0, 0);
                    let mut end = p.len();
                    for (n, x) in p.iter().enumerate() {
                        match x.s.as_str() {
                            "<" => a += 1,
                            ">" => a -= 1,
                            "(" => d += 1,
                            ")" => d -= 1,
                            "[" | "=" | "{" if a == 0 && d == 0 => {
                                end = n;
                                break;
                            }
                            _ => {}
                        }
                    }
                    if end == 0 || p[end - 1].k != K::Id {
                        pointer = true;
                        break;
                    }
                    if end >= 2 && (p[end - 2].s == "*" || p[end - 2].s == "&") {
                        pointer = true;
                        break;
                    }
                    names.push(p[end - 1].s.clone());
                }
                if !pointer {
                    let mut b2 = body.clone();
                    if let Some(f) = b2.first_mut() {
                        f.ws = String::new();
                    }
                    let b2: Vec<Tok> = b2
                        .into_iter()
                        .filter(|x| x.s != "static" && x.s != "volatile" && x.s != "__local")
                        .collect();
                    let _ = write!(o, "{ws}struct MslTg{tg_count} {{ {}; }};", text(&b2));
                    for n in &names {
                        if spaces {
                            let _ = write!(
                                o,
                                " __local auto& {n} = ((__local MslTg{tg_count}*)msl_local())->{n};"
                            );
                        } else {
                            let _ =
                                write!(o, " auto& {n} = ::msl_rt::tg_var<MslTg{tg_count}>().{n};");
                        }
                    }
                    tg_count += 1;
                    i = e + 1;
                    stmt_start = true;
                    prev = ";".into();
                    continue;
                }
            }
        }

        // ---- lints on plain code ---------------------------------------------------------------
        if t.k == K::Id && t.s == "double" {
            lints.push(Diag {
                file: files[t.file as usize].clone(),
                line: t.line,
                msg: "MSL has no double".into(),
            });
        }
        if t.k == K::Id
            && matches!(
                t.s.as_str(),
                "new"
                    | "delete"
                    | "throw"
                    | "try"
                    | "dynamic_cast"
                    | "goto"
                    | "virtual"
                    | "typeid"
                    | "thread_local"
            )
        {
            lints.push(Diag {
                file: files[t.file as usize].clone(),
                line: t.line,
                msg: format!("MSL does not support `{}`", t.s),
            });
        }
        if t.s == "["
            && t.k == K::Punct
            && i > 0
            && i + 2 < ts.len()
            && ts[i - 1].k != K::Id
            && !matches!(ts[i - 1].s.as_str(), "]" | ")" | ">")
        {
            let n = &ts[i + 1].s;
            if n == "&" || n == "=" || (n == "]" && (ts[i + 2].s == "(" || ts[i + 2].s == "{")) {
                lints.push(Diag {
                    file: files[t.file as usize].clone(),
                    line: t.line,
                    msg: "lambda expression: older MSL versions refuse it".into(),
                });
            }
        }
        if stmt_start && paren == 0 && in_fn && t.k == K::Id && !is_space(&t.s) {
            let mut j = i;
            let mut space = false;
            while j < ts.len() && (ts[j].s == "const" || is_space(&ts[j].s)) {
                space |= is_space(&ts[j].s);
                j += 1;
            }
            let kw = [
                "return", "if", "for", "while", "else", "do", "using", "typedef", "auto", "case",
                "switch", "delete", "struct",
            ];
            if j < ts.len() && ts[j].k == K::Id && !kw.contains(&ts[j].s.as_str()) {
                j += 1;
                while j + 1 < ts.len() && ts[j].s == "::" {
                    j += 2;
                }
                while j < ts.len() && (ts[j].s == "const" || is_space(&ts[j].s)) {
                    space |= is_space(&ts[j].s);
                    j += 1;
                }
                if !space
                    && j + 2 < ts.len()
                    && (ts[j].s == "*" || ts[j].s == "&")
                    && ts[j + 1].k == K::Id
                    && (ts[j + 2].s == "=" || ts[j + 2].s == ";")
                {
                    lints.push(Diag {
                        file: files[t.file as usize].clone(),
                        line: t.line,
                        msg: format!(
                            "pointer or reference variable without an address space: `{}`",
                            flat(&ts[i..j + 2])
                        ),
                    });
                }
            }
        }
        // function definitions: `name ( params ) {` at namespace or class scope
        if t.s == "(" && t.k == K::Punct && i > 0 && ts[i - 1].k == K::Id && paren == 0 && !in_fn {
            let e = close(&ts, i);
            if e < ts.len() && (ts[e].s == "{" || ts[e].s == "const") {
                lint_params(&ts[i + 1..e - 1], &files, &mut lints);
            }
        }

        // ---- everything else --------------------------------------------------------------------
        if t.k == K::Punct {
            match t.s.as_str() {
                "(" => paren += 1,
                ")" => paren -= 1,
                "{" => {
                    let mut ns = false;
                    let mut j = i;
                    while j > 0 && i - j < 4 {
                        j -= 1;
                        if ts[j].s == "namespace" {
                            ns = true;
                        }
                        if ts[j].s == ";" || ts[j].s == "}" || ts[j].s == ")" {
                            break;
                        }
                    }
                    braces.push(!ns);
                    // a class body: `struct`/`class`/`union` since the last statement, no `)` before the brace
                    let mut j = i;
                    let mut cls = false;
                    while j > 0 && !matches!(ts[j - 1].s.as_str(), ";" | "{" | "}") {
                        j -= 1;
                        if matches!(ts[j].s.as_str(), "struct" | "class" | "union") {
                            cls = true;
                        }
                    }
                    if i > 0 && (ts[i - 1].s == ")" || ts[i - 1].s == "=") {
                        cls = false;
                    }
                    class_scope.push(cls);
                    seen_heads.push(Default::default());
                }
                "}" => {
                    braces.pop();
                    class_scope.pop();
                    seen_heads.pop();
                    if seen_heads.is_empty() {
                        seen_heads.push(Default::default());
                    }
                }
                _ => {}
            }
        }
        o.push_str(&ws);
        match (t.k, t.s.as_str()) {
            (K::Id, w) if spaces && spaced(w).is_some() => {
                o.push_str(spaced(w).unwrap_or_default());
            }
            (K::Id, "device")
            | (K::Id, "thread")
            | (K::Id, "threadgroup")
            | (K::Id, "ray_data") => {}
            (K::Id, "constant") if after_ctor(&ts, i) => {}
            (K::Id, "constant") => o.push_str("const"),
            (K::Id, "static_cast") => o.push_str("msl_static_cast"),
            (K::Num, _) => {
                let mut n = t.clone();
                fix_number(&mut n);
                o.push_str(&n.s);
            }
            _ => o.push_str(&t.s),
        }
        stmt_start = matches!(t.s.as_str(), ";" | "{" | "}") && t.k == K::Punct;
        // `template <...>` header: the statement goes on after it
        if pending_template && t.s == ">" && paren == 0 {
            stmt_start = false;
        }
        if stmt_start && t.s == ";" || t.s == "}" {
            pending_template = false;
        }
        prev.clear();
        prev.push_str(&t.s);
        i += 1;
    }
    let _ = prev;
    let mut names = Vec::new();
    let mut reg = String::new();
    let mut seen = BTreeSet::new();
    for k in &kernels {
        let Some(bs) = defs.get(&k.base) else {
            return Err(Failure(format!(
                "kernel {}: no definition of `{}` seen",
                k.host_name, k.base
            )));
        };
        if !seen.insert(k.host_name.clone()) {
            continue;
        }
        names.push(k.host_name.clone());
        let n = names.len();
        let list: Vec<String> = bs
            .iter()
            .map(|b| format!("{}, {}}}", b.code.trim_end_matches('}'), b.optional as u8))
            .collect();
        let _ = writeln!(
            reg,
            "static const msl_rt::Bind msl_b{n}[] = {{ {} }};\nstatic void msl_e{n}(const msl_rt::Ctx& c) {{ msl_glue::call({}, msl_b{n}, c); }}",
            if list.is_empty() { "{0,0,0}".to_string() } else { list.join(", ") },
            k.expr
        );
        let _ = writeln!(
            reg,
            "static msl_rt::Entry msl_k{n} = {{ \"{}\", &msl_e{n}, msl_b{n}, {} }};",
            k.host_name,
            bs.len()
        );
    }
    if spaces {
        return Ok(Output { cpp: o, kernels: names, lints });
    }
    let _ = write!(o, "\n# 1 \"<generated:{module}>\"\n");
    o.push_str(&reg);
    let _ = writeln!(o, "static void msl_register_all() {{");
    for n in 1..=names.len() {
        let _ = writeln!(o, "  msl_rt::register_entry(&msl_k{n}, MSL_CHECKED);");
    }
    let _ = writeln!(o, "}}");
    Ok(Output { cpp: o, kernels: names, lints })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lints(src: &str) -> Vec<String> {
        rewrite(src, "t").unwrap().lints.into_iter().map(|d| d.msg).collect()
    }

    #[test]
    fn address_spaces_are_demanded() {
        assert_eq!(lints("inline float f(float* p) { return p[0]; }").len(), 1);
        assert_eq!(
            lints("inline float f(const device float* p, thread int& n) { return p[n]; }").len(),
            0
        );
        assert_eq!(lints("kernel void k(device float* a [[buffer(0)]], uint i [[thread_position_in_grid]]) { float* q = a; q[i] = 1.0; }").len(), 1);
        assert_eq!(lints("kernel void k(device float* a [[buffer(0)]]) { device float* q = a; float x = a[0] * q[1]; q[0] = x; }").len(), 0);
        assert_eq!(lints("inline double f(float x) { return x; }").len(), 1);
    }

    #[test]
    fn bindings_and_names() {
        let o = rewrite(
            "template <typename T> [[kernel]] void k(device T* a, constant int& n, threadgroup float* s [[threadgroup(0)]], uint i [[thread_position_in_grid]]) { a[i] = T(n); }\n\
             template [[host_name(\"k\" \"_f16\")]] [[kernel]] decltype(k<half>) k<half>;",
            "t",
        )
        .unwrap();
        assert_eq!(o.kernels, ["k_f16"]);
        assert!(o.cpp.contains("{msl_rt::B_BUFFER, 0, 0}, {msl_rt::B_BUFFER, 1, 0}, {msl_rt::B_TGMEM, 0, 0}, {msl_rt::B_thread_position_in_grid, 0, 0}"), "{}", o.cpp);
    }

    #[test]
    fn a_buffer_bound_twice_is_an_error() {
        assert!(
            rewrite(
                "kernel void k(device int* a [[buffer(0)]], device int* b [[buffer(0)]]) {}",
                "t"
            )
            .is_err()
        );
    }

    #[test]
    fn threadgroup_arrays_move_and_pointers_stay() {
        let o = rewrite("kernel void k(device float* a) { threadgroup float t[32], u; threadgroup float* p = t; p[0] = u; }", "t").unwrap();
        assert!(
            o.cpp.contains(
                "auto& t = ::msl_rt::tg_var<MslTg0>().t; auto& u = ::msl_rt::tg_var<MslTg0>().u;"
            ),
            "{}",
            o.cpp
        );
        assert!(o.cpp.contains("float* p = t;"));
    }
}
