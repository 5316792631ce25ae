// Error messages of launches, with kernel, block, threads and source location.
#include "hopper.h"

#include <unistd.h>

#include <cstdarg>
#include <cstdio>
#include <cstring>
#include <map>
#include <mutex>
#include <string>

// Load address of the program; addresses in debug information are relative to it.
extern "C" const char __executable_start;

namespace emulator {

const char* base_name(const char* path) {
    const char* slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

const char* name_of(Collective collective) {
    switch (collective) {
        case Collective::SYNC: return "__syncwarp";
        case Collective::SHUFFLE_INDEX: return "__shfl_sync";
        case Collective::SHUFFLE_UP: return "__shfl_up_sync";
        case Collective::SHUFFLE_XOR: return "__shfl_xor_sync";
        case Collective::VOTE: return "a vote";
        case Collective::LDMATRIX: return "ldmatrix";
        case Collective::MMA: return "mma";
        case Collective::WGMMA: return "wgmma";
        case Collective::WGMMA_FENCE: return "wgmma.fence";
        case Collective::WGMMA_COMMIT: return "wgmma.commit_group";
        case Collective::WGMMA_WAIT: return "wgmma.wait_group";
        case Collective::SET_REGISTERS: return "setmaxnreg";
        case Collective::NAMED_BARRIER: return "a numbered barrier";
    }
    return "?";
}

static void describe_state(const Lane& lane, char* text, size_t bytes) {
    switch (lane.state) {
        case State::READY: snprintf(text, bytes, "are ready"); break;
        case State::EXITED: snprintf(text, bytes, "have exited"); break;
        case State::SYNC_THREADS:
            snprintf(text, bytes, "wait at __syncthreads (%s:%d)", base_name(lane.place.file),
                     lane.place.line);
            break;
        case State::BARRIER:
        case State::NAMED_BARRIER: describe_wait(lane, text, bytes); break;
        case State::COLLECTIVE:
            snprintf(text, bytes, "wait at %s with mask 0x%08x (%s:%d)", name_of(lane.collective),
                     lane.mask, base_name(lane.place.file), lane.place.line);
            break;
    }
}

static int begin_message(const Lane* lane) {
    Machine& m = *machine;
    int used = snprintf(m.message, m.message_bytes, "%s.cu (%s), kernel %s, block (%u, %u, %u)",
                        m.source->name, m.source->element, m.kernel->name, m.block.x, m.block.y,
                        m.block.z);
    if (lane) {
        used += snprintf(m.message + used, m.message_bytes - used, ", thread (%u, %u, %u)",
                         lane->thread.x, lane->thread.y, lane->thread.z);
    }
    return used + snprintf(m.message + used, m.message_bytes - used, ": ");
}

// Reports e.g. "threads 0-15 wait at ...; threads 16-31 have exited".
void report_endless_wait() {
    Machine& m = *machine;
    size_t used = static_cast<size_t>(begin_message(nullptr));
    used += snprintf(m.message + used, m.message_bytes - used, "deadlock: threads wait for each other");
    char state[200], next[200];
    for (unsigned first = 0; first < m.threads && used + 300 < m.message_bytes;) {
        describe_state(m.lanes[first], state, sizeof state);
        unsigned last = first;
        for (; last + 1 < m.threads; last++) {
            describe_state(m.lanes[last + 1], next, sizeof next);
            if (strcmp(state, next) != 0) {
                break;
            }
        }
        used += snprintf(m.message + used, m.message_bytes - used, "%s threads %u-%u %s",
                         first == 0 ? ":" : ";", first, last, state);
        first = last + 1;
    }
    m.failed = true;
}

// Returns e.g. " at file.cu:12" from the debug information, with one entry per inlined function.
static std::string find_source_line(const void* code) {
    std::string found;
    char program[4096], command[5000], line[300];
    const ssize_t length = readlink("/proc/self/exe", program, sizeof program - 1);
    if (length <= 0 || memchr(program, '\'', static_cast<size_t>(length))) {
        return found;
    }
    program[length] = 0;
    // Use the address of the call, not of the instruction after it.
    const ptrdiff_t offset = static_cast<const char*>(code) - 1 - &__executable_start;
    snprintf(command, sizeof command, "addr2line -s -i -e '%s' 0x%tx 2>/dev/null", program, offset);
    FILE* lines = popen(command, "r");
    while (lines && fgets(line, sizeof line, lines)) {
        line[strcspn(line, " \n")] = 0;
        if (!strchr(line, '?') && strncmp(line, "emulator.h", 10) != 0) {
            found += std::string(" at ") + line;
        }
    }
    if (lines) {
        pclose(lines);
    }
    return found;
}

// Cached find_source_line(); empty for null and without addr2line.
static std::string source_line(const void* code) {
    static std::mutex mutex;
    static std::map<const void*, std::string> known;
    if (!code) {
        return std::string();
    }
    const std::lock_guard<std::mutex> guard(mutex);
    if (!known.count(code)) {
        known[code] = find_source_line(code);
    }
    return known[code];
}

static void append_source_line(char* text, size_t bytes, const void* code) {
    const size_t used = strlen(text);
    snprintf(text + used, bytes - used, "%s", source_line(code).c_str());
}

void check_site(const char* what, const Lane& mine, const Lane& other) {
    const bool same_line =
        mine.place.line == other.place.line && strcmp(mine.place.file, other.place.file) == 0;
    if (mine.site == other.site && same_line) {
        return;
    }
    std::string here = source_line(mine.site), there = source_line(other.site);
    if (same_line && here == there) {
        return;
    }
    if (here.empty() || there.empty()) {
        const auto line = [](const EmulatorPlace& place) {
            return std::string(" at ") + base_name(place.file) + ":" + std::to_string(place.line);
        };
        here = line(mine.place);
        there = line(other.place);
    }
    fault(nullptr, "divergent %s: this thread is%s, thread %u%s", what, here.c_str(), other.index,
          there.c_str());
}

void fault(const void* code, const char* format, ...) {
    Machine& m = *machine;
    if (m.message_bytes > 0) {
        int used = begin_message(current);
        va_list arguments;
        va_start(arguments, format);
        vsnprintf(m.message + used, m.message_bytes - used, format, arguments);
        va_end(arguments);
        append_source_line(m.message, m.message_bytes, code);
    }
    m.failed = true;
    current = nullptr;
    void* lost;
    emulator_switch(&lost, m.main_stack_pointer);
    __builtin_unreachable();
}

}  // namespace emulator
