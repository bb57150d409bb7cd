/* A stand-in for NVIDIA's libnvidia-ml.so.1, for tests alone: it never ships.
 *
 * Its state is the text file that FAKE_NVML_STATE names, read again at every call, so that a test changes the
 * cards while a reader runs. tests/fake_nvml.py writes it. One word and a value a line:
 *
 *     fail nvmlInitWithFlags 9        every call of that function fails with that code
 *     gpu                             begins a card; the lines below are about it
 *     mig                             begins a slice of that card, with the same lines
 *     memory_total 12878610432        a field that is not there is one the card does not support
 *     fail nvmlDeviceGetPowerUsage 4  the same, for this card alone; `*` is every function
 *     process 4711 8123456789 compute
 *
 * Functions not written here answer NOT_SUPPORTED; fake_nvml.py generates them from pynvml's own list. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SUCCESS, UNINITIALIZED, INVALID_ARGUMENT, NOT_SUPPORTED, NO_PERMISSION, NOT_FOUND = 6, INSUFFICIENT_SIZE,
       VERSION_MISMATCH = 25 };
enum { CARDS = 32, SLICES = 8, FIELDS = 24, PROCESSES = 64, FAILS = 40 };
typedef unsigned long long u64;
typedef struct { char word[24]; u64 value; } Field;
typedef struct { unsigned pid; u64 used; char kind; } Process;
typedef struct { char function[64]; int code; } Fail;
typedef struct {
    int there, slices, fields, processes, fails;
    char name[96], uuid[96];
    Field field[FIELDS];
    Process process[PROCESSES];
    Fail fail[FAILS];
} Card;
typedef struct { unsigned pid; u64 used; unsigned instance, compute; } ProcessInfo;

/* Device d is slice d % (SLICES + 1) of card d / (SLICES + 1); slice 0 is the whole card. */
static __thread Card all[CARDS * (SLICES + 1)], machine;
static __thread char driver[80];
static __thread int cards;
static int started;

static void parse(char *line, Card *card) {
    char word[64] = "", rest[200] = "", kind[16] = "";
    if (sscanf(line, "%63s %199[^\n]", word, rest) < 1) return;
    if (!strcmp(word, "driver")) snprintf(driver, sizeof driver, "%s", rest);
    else if (!strcmp(word, "name")) snprintf(card->name, sizeof card->name, "%s", rest);
    else if (!strcmp(word, "uuid")) snprintf(card->uuid, sizeof card->uuid, "%s", rest);
    else if (!strcmp(word, "fail") && card->fails < FAILS) {
        Fail *fail = &card->fail[card->fails++];
        sscanf(rest, "%63s %d", fail->function, &fail->code);
    } else if (!strcmp(word, "process") && card->processes < PROCESSES) {
        Process *process = &card->process[card->processes++];
        sscanf(rest, "%u %llu %15s", &process->pid, &process->used, kind);
        process->kind = kind[0];
    } else if (card->fields < FIELDS) {
        Field *field = &card->field[card->fields++];
        snprintf(field->word, sizeof field->word, "%s", word);
        field->value = strtoull(rest, 0, 10);
    }
}

static void look(void) {
    const char *path = getenv("FAKE_NVML_STATE");
    FILE *file = path ? fopen(path, "r") : 0;
    char line[320];
    Card *card = &machine, *whole = 0;
    memset(all, 0, cards * (SLICES + 1) * sizeof *all), memset(&machine, 0, sizeof machine);
    cards = 0, strcpy(driver, "0");
    while (file && fgets(line, sizeof line, file)) {
        if (!strcmp(line, "gpu\n") && cards < CARDS) card = whole = &all[cards++ * (SLICES + 1)];
        else if (!strcmp(line, "mig\n") && whole && whole->slices < SLICES) card = whole + ++whole->slices;
        else { parse(line, card); continue; }
        card->there = 1;
    }
    if (file) fclose(file);
}

static int told_to_fail(const Card *card, const char *function) {
    for (int i = 0; i < card->fails; i++)
        if (!strcmp(card->fail[i].function, function) || !strcmp(card->fail[i].function, "*")) return card->fail[i].code;
    return 0;
}

/* The machine's own functions begin with LOOK, a card's with CARD, which also gives `card`. */
#define LOOK() do { look(); int code_ = told_to_fail(&machine, __func__); if (code_) return code_; \
                    if (!started && strncmp(__func__, "nvmlInit", 8)) return UNINITIALIZED; } while (0)
#define CARD(device) LOOK(); const Card *card = find(device); if (!card) return INVALID_ARGUMENT; \
                     do { int code_ = told_to_fail(card, __func__); if (code_) return code_; } while (0)
#define GIVE(word, place) do { const u64 *v_ = value(card, word); if (!v_) return NOT_SUPPORTED; *(place) = *v_; \
                               return SUCCESS; } while (0)

static const Card *find(const void *device) {
    size_t at = (size_t)device - 1;
    return at < CARDS * (SLICES + 1) && all[at].there ? &all[at] : 0;
}
static int slice_of(const Card *card) { return (int)(card - all) % (SLICES + 1); }
static int index_of(const Card *card) { return (int)(card - all) / (SLICES + 1); }
static void *device_of(int index, int slice) { return (void *)(size_t)(1 + index * (SLICES + 1) + slice); }

static const u64 *value(const Card *card, const char *word) {
    for (int i = 0; i < card->fields; i++)
        if (!strcmp(card->field[i].word, word)) return &card->field[i].value;
    return 0;
}

static int text(char *place, unsigned room, const char *words) {
    if (strlen(words) + 1 > room) return INSUFFICIENT_SIZE;
    strcpy(place, words);
    return SUCCESS;
}

int nvmlInitWithFlags(unsigned flags) { LOOK(); started++; return SUCCESS; }
int nvmlInit_v2(void) { LOOK(); started++; return SUCCESS; }
int nvmlInit(void) { LOOK(); started++; return SUCCESS; }
int nvmlShutdown(void) { LOOK(); started--; return SUCCESS; }
const char *nvmlErrorString(int code) { return code == 999 ? "Unknown Error" : "an error of the fake library"; }
int nvmlSystemGetDriverVersion(char *place, unsigned room) { LOOK(); return text(place, room, driver); }
int nvmlSystemGetNVMLVersion(char *place, unsigned room) { LOOK(); return text(place, room, driver); }
int nvmlSystemGetCudaDriverVersion(int *version) { LOOK(); *version = 13000; return SUCCESS; }
int nvmlSystemGetCudaDriverVersion_v2(int *version) { LOOK(); *version = 13000; return SUCCESS; }

int nvmlDeviceGetCount_v2(unsigned *count) { LOOK(); *count = cards; return SUCCESS; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device) {
    LOOK();
    if (index >= (unsigned)cards) return INVALID_ARGUMENT;
    *device = device_of(index, 0);
    return told_to_fail(&all[index * (SLICES + 1)], __func__);
}
int nvmlDeviceGetHandleByUUID(const char *uuid, void **device) {
    LOOK();
    for (int i = 0; i < CARDS * (SLICES + 1); i++)
        if (all[i].there && !strcmp(all[i].uuid, uuid)) { *device = (void *)(size_t)(i + 1); return SUCCESS; }
    return NOT_FOUND;
}
int nvmlDeviceGetIndex(void *device, unsigned *index) { CARD(device); *index = index_of(card); return SUCCESS; }
int nvmlDeviceGetName(void *device, char *place, unsigned room) { CARD(device); return text(place, room, card->name); }
int nvmlDeviceGetUUID(void *device, char *place, unsigned room) { CARD(device); return text(place, room, card->uuid); }
int nvmlDeviceGetMinorNumber(void *device, unsigned *n) { CARD(device); *n = index_of(card); return SUCCESS; }
int nvmlDeviceGetPciInfo_v3(void *device, char *info) {
    CARD(device);
    unsigned *numbers = (unsigned *)(info + 16);
    memset(info, 0, 68);
    numbers[1] = index_of(card) + 1;
    snprintf(info, 16, "0000:%02X:00.0", numbers[1]);
    snprintf(info + 36, 32, "00000000:%02X:00.0", numbers[1]);
    return SUCCESS;
}

int nvmlDeviceGetMemoryInfo(void *device, u64 *memory) {
    CARD(device);
    const u64 *total = value(card, "memory_total"), *used = value(card, "memory_used"), *kept = value(card, "memory_reserved");
    if (!total || !used) return NOT_SUPPORTED;
    memory[2] = *used + (kept ? *kept : 0); /* the first version counts what the driver keeps as used */
    memory[0] = *total, memory[1] = *total - memory[2];
    return SUCCESS;
}
int nvmlDeviceGetMemoryInfo_v2(void *device, struct { unsigned version; u64 total, reserved, free, used; } *memory) {
    CARD(device);
    const u64 *total = value(card, "memory_total"), *used = value(card, "memory_used"), *kept = value(card, "memory_reserved");
    if (memory->version != 0x02000028) return VERSION_MISMATCH;
    if (!total || !used) return NOT_SUPPORTED;
    memory->total = *total, memory->used = *used, memory->reserved = kept ? *kept : 0;
    memory->free = *total - *used - memory->reserved;
    return SUCCESS;
}
int nvmlDeviceGetUtilizationRates(void *device, unsigned *rates) {
    CARD(device);
    const u64 *busy = value(card, "busy"), *memory = value(card, "memory_busy");
    if (!busy) return NOT_SUPPORTED;
    rates[0] = *busy, rates[1] = memory ? *memory : 0;
    return SUCCESS;
}
int nvmlDeviceGetEncoderUtilization(void *device, unsigned *busy, unsigned *us) { CARD(device); *us = 0; GIVE("encoder", busy); }
int nvmlDeviceGetDecoderUtilization(void *device, unsigned *busy, unsigned *us) { CARD(device); *us = 0; GIVE("decoder", busy); }
int nvmlDeviceGetPowerUsage(void *device, unsigned *mw) { CARD(device); GIVE("power_mw", mw); }
int nvmlDeviceGetEnforcedPowerLimit(void *device, unsigned *mw) { CARD(device); GIVE("power_limit_mw", mw); }
int nvmlDeviceGetPowerManagementLimit(void *device, unsigned *mw) { CARD(device); GIVE("power_limit_mw", mw); }
int nvmlDeviceGetTemperature(void *device, unsigned sensor, unsigned *c) { CARD(device); GIVE("temperature", c); }
int nvmlDeviceGetTemperatureV(void *device, struct { unsigned version, sensor; int c; } *t) { CARD(device); GIVE("temperature", &t->c); }
int nvmlDeviceGetFanSpeed(void *device, unsigned *percent) { CARD(device); GIVE("fan", percent); }
int nvmlDeviceGetClockInfo(void *device, unsigned kind, unsigned *mhz) { CARD(device); GIVE(kind == 2 ? "memory_clock" : "sm_clock", mhz); }
int nvmlDeviceGetMaxClockInfo(void *device, unsigned kind, unsigned *mhz) { CARD(device); GIVE(kind == 2 ? "memory_clock_max" : "sm_clock_max", mhz); }
int nvmlDeviceGetPerformanceState(void *device, unsigned *state) { CARD(device); GIVE("pstate", state); }
int nvmlDeviceGetCurrentClocksEventReasons(void *device, u64 *reasons) { CARD(device); GIVE("throttle", reasons); }
int nvmlDeviceGetCurrentClocksThrottleReasons(void *device, u64 *reasons) { CARD(device); GIVE("throttle", reasons); }
int nvmlDeviceGetTotalEccErrors(void *device, unsigned type, unsigned counter, u64 *errors) { CARD(device); GIVE("ecc", errors); }

static int processes(const Card *card, char kind, unsigned *count, ProcessInfo *place) {
    unsigned found = 0;
    for (int i = 0; i < card->processes; i++) {
        const Process *process = &card->process[i];
        if (process->kind != kind) continue;
        if (place && found < *count) place[found] = (ProcessInfo){process->pid, process->used ? process->used : ~0ull, ~0u, ~0u};
        found++;
    }
    int enough = place ? found <= *count : !found;
    *count = found;
    return enough ? SUCCESS : INSUFFICIENT_SIZE;
}
int nvmlDeviceGetComputeRunningProcesses_v3(void *device, unsigned *count, void *place) { CARD(device); return processes(card, 'c', count, place); }
int nvmlDeviceGetComputeRunningProcesses_v2(void *device, unsigned *count, void *place) { CARD(device); return processes(card, 'c', count, place); }
int nvmlDeviceGetGraphicsRunningProcesses_v3(void *device, unsigned *count, void *place) { CARD(device); return processes(card, 'g', count, place); }
int nvmlDeviceGetGraphicsRunningProcesses_v2(void *device, unsigned *count, void *place) { CARD(device); return processes(card, 'g', count, place); }

int nvmlDeviceGetMigMode(void *device, unsigned *now, unsigned *next) {
    CARD(device);
    if (!value(card, "mig_mode")) return NOT_SUPPORTED;
    *now = *next = *value(card, "mig_mode");
    return SUCCESS;
}
int nvmlDeviceGetMaxMigDeviceCount(void *device, unsigned *count) { CARD(device); *count = value(card, "mig_mode") ? 7 : 0; return SUCCESS; }
int nvmlDeviceGetMigDeviceHandleByIndex(void *device, unsigned index, void **slice) {
    CARD(device);
    if (index >= (unsigned)card->slices) return NOT_FOUND;
    *slice = device_of(index_of(card), index + 1);
    return SUCCESS;
}
int nvmlDeviceIsMigDeviceHandle(void *device, unsigned *is) { CARD(device); *is = slice_of(card) > 0; return SUCCESS; }
int nvmlDeviceGetDeviceHandleFromMigDeviceHandle(void *slice, void **device) { CARD(slice); *device = device_of(index_of(card), 0); return SUCCESS; }
