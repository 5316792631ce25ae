//! With the feature `emu`, compiles every kernel as C++ for the host, together with the emulator's runtime.
//!
//! Each `.cu` under `src/` and `tests/device/emulator/kernels/` becomes one object for each dtype that its first line
//! lists (`// dtypes: f32 bf16 f16`). Objects are cached by the hash of the preprocessed source and the flags, so a
//! change recompiles only what it affects. Without the feature this does nothing.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    #[cfg(feature = "emu")]
    emulator::build();
}

#[cfg(feature = "emu")]
mod emulator {
    use std::collections::HashSet;
    use std::fs;
    use std::hash::{DefaultHasher, Hash, Hasher};
    use std::io::Write;
    use std::path::{Path, PathBuf};
    use std::process::{Command, Output, Stdio};
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::{Mutex, PoisonError};

    const RUNTIME: &str = "src/kernel/emu";
    const HEADERS: &str = "src/kernel/include";
    /// Kernels of the emulator's own tests.
    const TESTS: &str = "tests/device/emulator/kernels";

    /// Memory accesses must be instrumented exactly as written: nothing may split, merge or reorder them. Only the
    /// calls that the sanitizer inserts before each access are used; its library is not linked.
    const KERNEL_FLAGS: [&str; 9] = [
        "-fsanitize=thread",
        "-fno-tree-vectorize",
        "-fno-strict-aliasing",
        "-ffp-contract=off",
        "-g1",
        "-Wall",
        "-Wno-unknown-pragmas",
        "-Wno-unused-function",
        "-Wno-attributes",
    ];
    /// The same, for flags that only GCC knows.
    const GCC_FLAGS: [&str; 2] = ["-fno-store-merging", "-fno-tree-sra"];

    /// An object file to compile.
    struct Job {
        /// Name of the object, also in messages.
        name: String,
        /// Source text for the compiler's standard input; preprocessed if it is a kernel.
        text: String,
        flags: Vec<String>,
        language: &'static str,
    }

    pub fn build() {
        let arch = std::env::var("CARGO_CFG_TARGET_ARCH").unwrap_or_default();
        let os = std::env::var("CARGO_CFG_TARGET_OS").unwrap_or_default();
        if !["x86_64", "aarch64"].contains(&arch.as_str()) || os != "linux" {
            fail(&format!(
                "the emulator (feature emu) runs on Linux on x86-64 and aarch64, not {os} {arch}"
            ));
        }
        for folder in ["src", TESTS] {
            println!("cargo:rerun-if-changed={folder}");
        }
        let compiler =
            cc::Build::new().cpp(true).opt_level(2).debug(false).warnings(false).get_compiler();
        let base: Vec<String> =
            ["-std=c++17", "-O2", "-fPIC", "-fno-exceptions", "-fno-rtti", "-fno-math-errno"]
                .iter()
                .map(|f| f.to_string())
                .chain(host_flags(&arch))
                .collect();

        let mut jobs = Vec::new();
        let mut sources = Vec::new();
        for path in find("src", "cu").into_iter().chain(find(TESTS, "cu")) {
            for element in elements(&path) {
                jobs.push(kernels(&compiler, &base, &path, element));
                sources.push(format!("{}_{element}", stem(&path)));
            }
        }
        for path in find(RUNTIME, "cpp") {
            let mut flags = base.clone();
            flags.extend(["-O3", "-Wall", "-Wextra", "-g1"].map(String::from));
            let text = format!("#include \"{}\"\n", absolute(&path));
            // Preprocessed, so that the hash covers the headers.
            let text = preprocess(&compiler, &flags, &text, &path);
            jobs.push(Job { name: stem(&path), text, flags, language: "c++-cpp-output" });
        }
        jobs.push(Job {
            name: "sources".into(),
            text: table(&sources),
            flags: base,
            language: "c++",
        });

        let objects = compile(&compiler, &jobs);
        cc::Build::new().cpp(true).objects(objects).cargo_metadata(true).compile("emulator");
    }

    /// Additional features of the build machine: half precision and fused multiply-adds.
    fn host_flags(arch: &str) -> Vec<String> {
        let native = std::env::var("HOST").ok() == std::env::var("TARGET").ok();
        #[cfg(target_arch = "x86_64")]
        if native
            && arch == "x86_64"
            && std::is_x86_feature_detected!("avx2")
            && std::is_x86_feature_detected!("fma")
        {
            return vec!["-mavx2".into(), "-mfma".into()];
        }
        let _ = (native, arch);
        Vec::new()
    }

    /// The dtypes listed in the first line.
    fn elements(path: &Path) -> Vec<&'static str> {
        let text = read(path);
        let line = text.lines().next().unwrap_or_default();
        let Some(list) = line.strip_prefix("// dtypes:") else {
            fail(&format!(
                "{}: the first line must be \"// dtypes:\" and some of f32 bf16 f16",
                path.display()
            ));
        };
        list.split_whitespace()
            .map(|word| match ["f32", "bf16", "f16"].iter().find(|e| **e == word) {
                Some(element) => *element,
                None => {
                    fail(&format!("{}: dtype {word} is not one of f32, bf16, f16", path.display()))
                }
            })
            .collect()
    }

    /// A kernel source for one dtype, in its own namespace, with the table of its kernels.
    fn kernels(compiler: &cc::Tool, base: &[String], path: &Path, element: &'static str) -> Job {
        let name = format!("{}_{element}", stem(path));
        let mut flags = base.to_vec();
        flags.extend(KERNEL_FLAGS.map(String::from));
        if compiler.is_like_gnu() {
            flags.extend(GCC_FLAGS.map(String::from));
        }
        flags.push("-DEMULATOR=1".into());
        flags.push(format!("-DELEMENT_{}=1", element.to_uppercase()));
        flags.push(format!("-I{}", absolute(Path::new(HEADERS))));
        flags.push(format!("-I{}", absolute(Path::new(RUNTIME))));
        let text =
            format!("#include \"emulator.h\"\nnamespace {{\n#include \"{}\"\n", absolute(path));
        let mut text = preprocess(compiler, &flags, &text, path);
        let entries: String = find_kernels(&text, path)
            .iter()
            .map(|k| {
                format!(
                    "emulator_kernel<{}>(\"{}\", \"{}\", \"{}\", {}),\n",
                    k.name, k.name, k.parameters, k.constant, k.most_threads
                )
            })
            .collect();
        text += &format!(
            "\nconst EmulatorKernel emulator_kernels[] = {{\n{entries}}};\n}}\n\
             extern \"C\" {{\nextern const EmulatorSource emulator_source_{name};\n\
             const EmulatorSource emulator_source_{name} = {{\"{}\", \"{element}\", emulator_kernels, \
             sizeof emulator_kernels / sizeof *emulator_kernels}};\n}}\n",
            stem(path)
        );
        Job { name, text, flags, language: "c++-cpp-output" }
    }

    struct Kernel {
        name: String,
        parameters: String,
        /// For each parameter whether it is `const T* __restrict__`: 0 or 1.
        constant: String,
        most_threads: String,
    }

    /// The kernel definitions that the KERNEL macro left in the preprocessed source.
    fn find_kernels(text: &str, path: &Path) -> Vec<Kernel> {
        const MARK: &str = "[[emulator::kernel(";
        let wrong = |what: &str| -> ! { fail(&format!("{}: a KERNEL {what}", path.display())) };
        let mut kernels = Vec::new();
        for part in text.split(MARK).skip(1) {
            let Some((head, rest)) = part.split_once(")]]") else { wrong("is not closed") };
            let mut head = head.split(',').map(str::trim);
            let name = head.next().unwrap_or_default().to_string();
            let most_threads = head.next().unwrap_or("256").to_string();
            if !name.starts_with(&stem(path)) {
                wrong(&format!("named {name} must start with the name of the source"));
            }
            let list = rest.split_once('(').and_then(|(_, rest)| rest.split_once(')'));
            let Some((list, _)) = list else { wrong(&format!("{name} without parameters")) };
            let word = |p: &str| {
                p.trim()
                    .rsplit(|c: char| !c.is_alphanumeric() && c != '_')
                    .next()
                    .unwrap_or_default()
                    .to_string()
            };
            let parameters = list.split(',').map(word).collect::<Vec<_>>().join(",");
            let is_constant = |p: &str| {
                let text = p.replace(char::is_whitespace, "");
                if text.starts_with("const") && text.contains("*__restrict") { '1' } else { '0' }
            };
            let constant = list.split(',').map(is_constant).collect();
            kernels.push(Kernel { name, parameters, constant, most_threads });
        }
        if kernels.is_empty() {
            fail(&format!("{}: no KERNEL", path.display()));
        }
        kernels
    }

    /// The table of all sources that the runtime searches.
    fn table(sources: &[String]) -> String {
        let declare: String = sources
            .iter()
            .map(|s| format!("extern const EmulatorSource emulator_source_{s};\n"))
            .collect();
        let list: String = sources.iter().map(|s| format!("&emulator_source_{s},\n")).collect();
        format!(
            "struct EmulatorSource;\nextern \"C\" {{\n{declare}\
             extern const EmulatorSource* const emulator_sources[];\n\
             const EmulatorSource* const emulator_sources[] = {{\n{list}nullptr}};\n}}\n"
        )
    }

    fn preprocess(compiler: &cc::Tool, flags: &[String], text: &str, path: &Path) -> String {
        let mut command = compiler.to_command();
        command.args(flags).args(["-E", "-x", "c++", "-"]);
        let output = run(&mut command, text);
        if !output.status.success() {
            fail(&format!("{}:\n{}", path.display(), String::from_utf8_lossy(&output.stderr)));
        }
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// Compiles what is not cached, on all cores; returns the objects.
    fn compile(compiler: &cc::Tool, jobs: &[Job]) -> Vec<PathBuf> {
        let folder = PathBuf::from(std::env::var_os("OUT_DIR").unwrap_or_default()).join("objects");
        if let Err(error) = fs::create_dir_all(&folder) {
            fail(&format!("{}: {error}", folder.display()));
        }
        let version = Command::new(compiler.path())
            .arg("--version")
            .output()
            .map(|o| o.stdout)
            .unwrap_or_default();
        let objects: Vec<PathBuf> = jobs
            .iter()
            .map(|job| {
                let mut hasher = DefaultHasher::new();
                (&version, compiler.args(), &job.flags, &job.text).hash(&mut hasher);
                folder.join(format!("{}-{:016x}.o", job.name, hasher.finish()))
            })
            .collect();
        let (next, errors) = (AtomicUsize::new(0), Mutex::new(String::new()));
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        std::thread::scope(|scope| {
            for _ in 0..cores {
                scope.spawn(|| {
                    while let Some(i) =
                        Some(next.fetch_add(1, Ordering::Relaxed)).filter(|i| *i < jobs.len())
                    {
                        if let Err(words) = compile_one(compiler, &jobs[i], &objects[i]) {
                            *errors.lock().unwrap_or_else(PoisonError::into_inner) += &words;
                        }
                    }
                });
            }
        });
        let errors = errors.into_inner().unwrap_or_else(PoisonError::into_inner);
        if !errors.is_empty() {
            fail(&errors);
        }
        let kept: HashSet<&PathBuf> = objects.iter().collect();
        for entry in fs::read_dir(&folder).into_iter().flatten().flatten() {
            if !kept.contains(&entry.path()) {
                let _ = fs::remove_file(entry.path());
            }
        }
        objects
    }

    fn compile_one(compiler: &cc::Tool, job: &Job, object: &Path) -> Result<(), String> {
        if object.exists() {
            return Ok(());
        }
        // Renamed when complete: an interrupted build leaves no partial object.
        let part = object.with_extension("part");
        let mut command = compiler.to_command();
        command.args(&job.flags).args(["-x", job.language, "-c", "-o"]).arg(&part).arg("-");
        let output = run(&mut command, &job.text);
        let words = String::from_utf8_lossy(&output.stderr);
        if !output.status.success() {
            return Err(format!("{} ({}):\n{words}", job.name, compiler.path().display()));
        }
        for line in words.lines() {
            println!("cargo:warning={line}");
        }
        fs::rename(&part, object).map_err(|e| format!("{}: {e}\n", object.display()))
    }

    fn run(command: &mut Command, input: &str) -> Output {
        let command = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let program = command.get_program().to_string_lossy().into_owned();
        let mut run = || -> std::io::Result<Output> {
            let mut child = command.spawn()?;
            let stdin = child.stdin.take();
            std::thread::scope(|scope| {
                scope.spawn(move || stdin.map(|mut pipe| pipe.write_all(input.as_bytes())));
                child.wait_with_output()
            })
        };
        run().unwrap_or_else(|error| {
            fail(&format!("{program}: {error}; the emulator (feature emu) needs GCC or Clang with -fsanitize=thread"))
        })
    }

    /// All files with the extension in a folder and its subfolders, sorted.
    fn find(folder: &str, extension: &str) -> Vec<PathBuf> {
        let (mut found, mut folders) = (Vec::new(), vec![PathBuf::from(folder)]);
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(&folder).into_iter().flatten().flatten() {
                let path = entry.path();
                if path.is_dir() {
                    folders.push(path);
                } else if path.extension().is_some_and(|e| e == extension) {
                    found.push(path);
                }
            }
        }
        found.sort();
        found
    }

    fn stem(path: &Path) -> String {
        path.file_stem().unwrap_or_default().to_string_lossy().into_owned()
    }

    fn absolute(path: &Path) -> String {
        std::path::absolute(path).unwrap_or_else(|_| path.to_path_buf()).display().to_string()
    }

    fn read(path: &Path) -> String {
        fs::read_to_string(path)
            .unwrap_or_else(|error| fail(&format!("{}: {error}", path.display())))
    }

    fn fail(words: &str) -> ! {
        eprintln!("{words}");
        std::process::exit(1);
    }
}
