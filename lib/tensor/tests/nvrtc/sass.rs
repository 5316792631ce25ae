//! Counts instructions in the disassembly of machine code (`nvdisasm -c`).

use std::cmp::Reverse;
use std::collections::{HashMap, HashSet};
use std::path::PathBuf;
use std::process::Command;

/// Instructions of a kernel and, where nothing else is said, of its main loop without loops inside, on the shortest of
/// the ways through it that calculate and load most: that without masks. The main loop is the one with most matrix
/// instructions, then with most multiply-adds whose operands come from shared memory, then with most multiply-adds, loads
/// and instructions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Of the whole kernel, with its subroutines.
    pub all: u32,
    /// Of the whole kernel: integer divisions by a number that is not constant.
    pub all_divisions: u32,
    pub in_loop: u32,
    /// HMMA and HGMMA.
    pub mma: u32,
    /// FFMA; FFMA2 counts twice.
    pub ffma: u32,
    /// LDS and LDSM.
    pub shared_loads: u32,
    /// LDG, LDGSTS and UTMALDG.
    pub global_loads: u32,
    pub divisions: u32,
    pub barriers: u32,
    /// Units of 128 bytes that a warp moves to and from shared memory, at best.
    pub shared_units: u32,
}

impl Counts {
    pub const NAMES: &str = "instructions, integer divisions; in the main loop: instructions, HMMA, FFMA, \
         loads from shared and from global memory, integer divisions, barriers, 128 bytes to and from shared memory";

    pub fn row(&self) -> [u32; 10] {
        [
            self.all,
            self.all_divisions,
            self.in_loop,
            self.mma,
            self.ffma,
            self.shared_loads,
            self.global_loads,
            self.divisions,
            self.barriers,
            self.shared_units,
        ]
    }
}

/// nvdisasm, which `make deps` installs beside NVRTC.
pub fn nvdisasm() -> Option<PathBuf> {
    let folder = std::env::var_os("LONGHAUL_NVRTC").map(PathBuf::from);
    let folder = folder.unwrap_or(concat!(env!("CARGO_MANIFEST_DIR"), "/../../.deps/nvrtc").into());
    let inside = ["nvidia/cu13/bin/nvdisasm", "bin/nvdisasm"].map(|name| folder.join(name));
    let on_path = std::env::var_os("PATH").into_iter().flat_map(|path| {
        std::env::split_paths(&path).map(|folder| folder.join("nvdisasm")).collect::<Vec<_>>()
    });
    inside.into_iter().chain(on_path).find(|path| path.is_file())
}

/// The counts of every kernel of a cubin, by name.
pub fn counts(nvdisasm: &PathBuf, cubin: &[u8]) -> Result<HashMap<String, Counts>, String> {
    let file = tempfile::NamedTempFile::new().map_err(|why| why.to_string())?;
    std::fs::write(file.path(), cubin).map_err(|why| why.to_string())?;
    let output = Command::new(nvdisasm).arg("-c").arg(file.path()).output();
    let output = output.map_err(|why| format!("{}: {why}", nvdisasm.display()))?;
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).into_owned());
    }
    let text = String::from_utf8_lossy(&output.stdout);
    let sections = text.split("\n.text.").skip(1);
    Ok(sections.filter_map(|s| s.split_once(":\n")).map(|(n, s)| (n.into(), count(s))).collect())
}

/// An instruction: what it does, and where it may go instead of to the next.
#[derive(Debug)]
struct Instruction<'a> {
    name: &'a str,
    operands: &'a str,
    is_conditional: bool,
}

impl Instruction<'_> {
    /// Whether the next instruction is never executed after this one.
    fn ends(&self) -> bool {
        match self.base() {
            // It may have a second condition: `BRA P1, `(.L_x_1)`.
            "BRA" => !self.is_conditional && self.operands.starts_with('`'),
            "BRX" | "EXIT" | "RET" | "JMP" => !self.is_conditional,
            _ => false,
        }
    }

    /// The labels it may jump to. The code for a warp whose lanes have diverged is left out: ours never do there.
    fn targets(&self) -> Vec<&str> {
        match self.base() {
            "BRA" if self.name.contains(".DIV") => Vec::new(),
            // A call of a label without a name is a jump; subroutines have names.
            "BRA" | "CALL" => {
                self.operands.split(['`', '(', ')']).filter(|s| s.starts_with(".L")).collect()
            }
            "BRX" => {
                let list = self.operands.split_once("BRANCH_TARGETS ").map_or("", |(_, list)| list);
                list.split([',', '"', '*', ')', ' ']).filter(|s| s.starts_with(".L")).collect()
            }
            _ => Vec::new(),
        }
    }

    fn base(&self) -> &str {
        self.name.split('.').next().unwrap_or(self.name)
    }

    fn has(&self, modifier: &str) -> bool {
        self.name.split('.').any(|part| part == modifier)
    }

    /// Whether it calculates, loads, waits for others or divides.
    fn works(&self) -> bool {
        let names =
            ["HMMA", "HGMMA", "FFMA", "FFMA2", "LDS", "LDSM", "LDG", "LDGSTS", "UTMALDG", "BAR"];
        names.contains(&self.base()) && !self.is_nothing() || self.is_division()
    }

    /// A division begins with a reciprocal that is rounded up, or is a subroutine if it has 64 bits.
    fn is_division(&self) -> bool {
        self.base() == "I2F" && self.has("RP")
            || self.base() == "CALL" && ["s64", "u64"].iter().any(|w| self.operands.contains(w))
    }

    /// A load without a destination, which the compiler puts before asynchronous copies.
    fn is_nothing(&self) -> bool {
        self.base() == "LDS" && self.operands.starts_with("RZ")
    }

    /// 128 bytes to or from shared memory, for a whole warp.
    fn shared_units(&self) -> u32 {
        match self.base() {
            _ if self.is_nothing() => 0,
            "LDSM" if self.has("4") => 4,
            "LDSM" if self.has("2") => 2,
            "LDS" | "STS" | "LDGSTS" if self.has("128") => 4,
            "LDS" | "STS" | "LDGSTS" if self.has("64") => 2,
            "LDSM" | "LDS" | "STS" | "LDGSTS" => 1,
            _ => 0,
        }
    }
}

/// Counts the instructions of a section, of which each line is a label or an instruction.
fn count(section: &str) -> Counts {
    let mut code = Vec::new();
    let mut labels = HashMap::new();
    for line in section.lines() {
        if line.contains(".section") {
            break;
        }
        if let Some(label) = line.strip_suffix(':') {
            labels.insert(label, code.len());
        } else if let Some((_, instruction)) = line.split_once("*/") {
            code.push(parse(instruction.trim()));
        }
    }
    let next: Vec<Vec<usize>> = code
        .iter()
        .enumerate()
        .map(|(at, instruction)| {
            let after = (!instruction.ends()).then_some(at + 1).filter(|at| *at < code.len());
            let targets = instruction.targets();
            let targets = targets.iter().filter_map(|label| labels.get(label).copied());
            after.into_iter().chain(targets.filter(|at| *at < code.len())).collect()
        })
        .collect();
    let of = |at: &mut dyn Iterator<Item = usize>| {
        let mut counts = Counts::default();
        for instruction in at.map(|at| &code[at]) {
            counts.in_loop += 1;
            match instruction.base() {
                "HMMA" | "HGMMA" => counts.mma += 1,
                "FFMA" => counts.ffma += 1,
                "FFMA2" => counts.ffma += 2,
                "LDS" if instruction.is_nothing() => {}
                "LDS" | "LDSM" => counts.shared_loads += 1,
                "LDG" | "LDGSTS" | "UTMALDG" => counts.global_loads += 1,
                "BAR" => counts.barriers += 1,
                _ => {}
            }
            counts.divisions += u32::from(instruction.is_division());
            counts.shared_units += instruction.shared_units();
        }
        counts
    };
    let whole = of(&mut (0..code.len()).filter(|at| code[*at].base() != "NOP"));
    let loops = loops(&next);
    let own = loops.iter().map(|Loop { header, ways, body }| {
        let inner = loops
            .iter()
            .filter(|other| other.body.len() < body.len() && body.contains(&other.header));
        let inner: HashSet<usize> = inner.flat_map(|inner| &inner.body).copied().collect();
        // What is done on the best way to each instruction, and the one before it.
        let mut best: HashMap<usize, (Way, usize)> = HashMap::new();
        for at in body {
            let before = ways[at].iter().filter_map(|from| Some((best.get(from)?.0, *from)));
            let (Way(work, length), from) = before.max().unwrap_or((Way::default(), *at));
            let own = usize::from(!inner.contains(at));
            let works = own * usize::from(code[*at].works());
            best.insert(*at, (Way(work + works, Reverse(length.0 + own)), from));
        }
        let ends = best.iter().filter(|(at, _)| next[**at].contains(header));
        let mut way = Vec::new();
        let mut last = ends.max_by_key(|(at, (way, _))| (*way, **at)).map(|(at, _)| *at);
        while let Some(at) = last {
            way.push(at);
            last = best.get(&at).map(|(_, from)| *from).filter(|from| *from != at);
        }
        of(&mut way.into_iter().filter(|at| !inner.contains(at)))
    });
    let key = |c: &Counts| {
        let from_shared = if c.ffma > 0 { c.shared_loads } else { 0 };
        (c.mma, from_shared, c.ffma, c.global_loads, c.in_loop)
    };
    let main = own.max_by_key(key).unwrap_or_default();
    Counts { all: whole.in_loop, all_divisions: whole.divisions, ..main }
}

/// `@!P0 BRA P1, `(.L_x_3) ;` and the like.
fn parse(text: &str) -> Instruction<'_> {
    let (is_conditional, text) = match text.strip_prefix('@') {
        Some(rest) => rest.split_once(' ').map_or((true, rest), |(_, rest)| (true, rest.trim())),
        None => (false, text),
    };
    let (name, operands) = text.split_once(' ').unwrap_or((text, ""));
    Instruction { name, operands, is_conditional }
}

/// A way through a loop: how many of its instructions work, and how many there are. The best does most with fewest.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
struct Way(usize, Reverse<usize>);

/// A natural loop.
struct Loop {
    header: usize,
    /// Its instructions, in an order in which control flows but for the edges that close loops.
    body: Vec<usize>,
    /// Those from which control comes to each, but for these edges.
    ways: HashMap<usize, Vec<usize>>,
}

/// The natural loops of a control-flow graph that is entered at 0, by their first instruction: those that it dominates
/// and from which it is reached again (Aho, Lam, Sethi, Ullman, "Compilers", section 9.6).
fn loops(next: &[Vec<usize>]) -> Vec<Loop> {
    // In order of a depth-first search, predecessors before successors but for the edges that close a loop.
    let (mut order, mut seen) = (Vec::new(), vec![false; next.len()]);
    let mut stack: Vec<(usize, usize)> = Vec::new();
    if !next.is_empty() {
        seen[0] = true;
        stack.push((0, 0));
    }
    while let Some((at, done)) = stack.pop() {
        if let Some(to) = next[at].get(done) {
            stack.push((at, done + 1));
            if !std::mem::replace(&mut seen[*to], true) {
                stack.push((*to, 0));
            }
        } else {
            order.push(at);
        }
    }
    order.reverse();
    let mut place = vec![usize::MAX; next.len()];
    order.iter().enumerate().for_each(|(i, at)| place[*at] = i);
    let mut before = vec![Vec::new(); next.len()];
    for at in &order {
        next[*at].iter().for_each(|to| before[*to].push(*at));
    }
    // Immediate dominators: Cooper, Harvey and Kennedy, "A simple, fast dominance algorithm", 2001.
    let mut dominator = vec![usize::MAX; next.len()];
    if let Some(first) = order.first() {
        dominator[*first] = *first;
    }
    let meet = |dominator: &[usize], mut a: usize, mut b: usize| {
        while a != b {
            if place[a] > place[b] { a = dominator[a] } else { b = dominator[b] }
        }
        a
    };
    loop {
        let mut changed = false;
        for at in order.iter().skip(1) {
            let known = before[*at].iter().copied().filter(|b| dominator[*b] != usize::MAX);
            let new = known.reduce(|a, b| meet(&dominator, a, b));
            if let Some(new) = new.filter(|new| dominator[*at] != *new) {
                dominator[*at] = new;
                changed = true;
            }
        }
        if !changed {
            break;
        }
    }
    let mut loops = Vec::new();
    for header in &order {
        let closes = |at: &usize| meet(&dominator, *at, *header) == *header;
        let mut open: Vec<usize> = before[*header].iter().copied().filter(closes).collect();
        if open.is_empty() {
            continue;
        }
        let mut inside = HashSet::from([*header]);
        while let Some(at) = open.pop() {
            if inside.insert(at) {
                open.extend(&before[at]);
            }
        }
        let mut body: Vec<usize> = inside.iter().copied().collect();
        body.sort_unstable_by_key(|at| place[*at]);
        let forward = |at: usize| {
            let ways = before[at].iter().copied();
            ways.filter(|from| inside.contains(from) && place[*from] < place[at]).collect()
        };
        let ways = body.iter().map(|at| (*at, forward(*at))).collect();
        loops.push(Loop { header: *header, body, ways });
    }
    loops
}

#[test]
fn instructions_of_the_main_loop_are_counted() {
    // Two loops, one of which contains another; a branch in the main one, of which the side that loads more counts.
    let code = "
        /*0000*/                   I2F.U32.RP R6, R7 ;
.L_x_0:
        /*0010*/                   HMMA.16816.F32.BF16 R4, R132.reuse, R136, R4 ;
        /*0020*/               @P0 BRA `(.L_x_2) ;
        /*0030*/                   LDSM.16.M88.4 R4, [R2] ;
        /*0040*/              @!P2 LDS RZ, [RZ] ;
        /*0050*/                   LDGSTS.E.BYPASS.128 [R5], [R2.64] ;
        /*0060*/                   CALL.REL.NOINC `($__internal_0_$__cuda_sm20_div_s64) ;
        /*0070*/                   BRA `(.L_x_3) ;
.L_x_2:
        /*0080*/                   STS.64 [R2], R4 ;
.L_x_3:
        /*0090*/                   LDG.E R4, [R2.64] ;
        /*00a0*/              @!P3 BRA `(.L_x_3) ;
        /*00b0*/                   BRA.DIV UR4, `(.L_x_5) ;
        /*00c0*/                   BAR.SYNC.DEFER_BLOCKING 0x0 ;
        /*00d0*/                   BRA P1, `(.L_x_0) ;
.L_x_4:
        /*00e0*/                   FFMA R1, R2, R3, R1 ;
        /*00f0*/               @P0 BRA `(.L_x_4) ;
        /*0100*/                   EXIT ;
.L_x_5:
        /*0110*/                   BRA `(.L_x_0) ;
        /*0120*/                   NOP ;
";
    let counted = count(code);
    // HMMA, BRA, LDSM, LDS, LDGSTS, CALL, BRA; BRA.DIV, BAR, BRA.
    let expected = Counts {
        all: 18,
        all_divisions: 2,
        in_loop: 10,
        mma: 1,
        ffma: 0,
        shared_loads: 1,
        global_loads: 1,
        divisions: 1,
        barriers: 1,
        shared_units: 8,
    };
    assert_eq!(counted, expected);
    assert_eq!(count(""), Counts::default());
    // A jump that looks like a call.
    let jump = "
        /*0000*/              @!P0 CALL.REL.NOINC `(.L_x_0) ;
        /*0010*/                   EXIT ;
.L_x_0:
        /*0020*/                   FFMA R1, R2, R3, R1 ;
        /*0030*/               @P0 BRA `(.L_x_0) ;
        /*0040*/                   EXIT ;
";
    assert_eq!(count(jump).ffma, 1);
}
