/* A prover in another language: it proves three queries by its own loop, and prints its steps as JSON lines.

   gcc -o prover prover.c && ./prover > steps.jsonl && kgverify trace import steps.jsonl -o c.h5

   With -DLOSES_LAST_FACT it has a fault to find. */
#include <stdio.h>
#include <string.h>

enum { MAX_ATOMS = 8, MAX_SUCCESSORS = 16, MAX_DEPTH = 20, APART = 32, VARIABLES = 64 };

/* A term is a constant's number, or -1 - v for variable v. */
typedef struct { int predicate, terms[2]; } Atom;
typedef struct { int size; Atom atoms[MAX_ATOMS]; } Goal;
typedef struct { Goal goal; int is_rule, clause; } Successor;

static const char *predicates[] = {"parent", "grandparent", "great"};
static const char *constants[] = {"ann", "bob", "cal", "dan", "eve", "fay", "gus"};
static const Atom facts[] = {{0, {0, 1}}, {0, {0, 2}}, {0, {1, 3}}, {0, {1, 4}}, {0, {2, 5}}, {0, {3, 6}}};
static const Goal rules[] = { /* each head first */
    {3, {{1, {-1, -2}}, {0, {-1, -3}}, {0, {-3, -2}}}},
    {3, {{2, {-1, -2}}, {0, {-1, -3}}, {1, {-3, -2}}}},
};
static const Atom queries[] = {{2, {0, 6}}, {1, {0, 5}}, {1, {3, 0}}};
#define COUNT(array) ((int)(sizeof(array) / sizeof(array[0])))

static int same(Atom x, Atom y) { return memcmp(&x, &y, sizeof x) == 0; }

static int walk(const int *bound, int term) {
    while (term < 0 && bound[-1 - term] != term) term = bound[-1 - term];
    return term;
}

static int is_fact(Atom atom, Atom query) {
    for (int i = 0; i < COUNT(facts); i++)
        if (same(atom, facts[i])) return !same(atom, query);
    return 0;
}

/* Resolve a goal with a clause: unify, apply, delete facts, number the variables by first appearance. */
static int resolve(const Goal *goal, const Goal *clause, Atom query, Goal *made) {
    int bound[VARIABLES], number[VARIABLES], next = 0;
    if (clause->atoms[0].predicate != goal->atoms[0].predicate) return 0;
    for (int v = 0; v < VARIABLES; v++) bound[v] = -1 - v, number[v] = 0;
    for (int side = 0; side < 2; side++) {
        int head = clause->atoms[0].terms[side];
        int x = walk(bound, head < 0 ? head - APART : head), y = walk(bound, goal->atoms[0].terms[side]);
        if (x < 0) bound[-1 - x] = y;
        else if (y < 0) bound[-1 - y] = x;
        else if (x != y) return 0;
    }
    made->size = 0;
    for (int i = 1; i < clause->size + goal->size - 1; i++) {
        int is_body = i < clause->size;
        Atom atom = is_body ? clause->atoms[i] : goal->atoms[i - clause->size + 1];
        for (int side = 0; side < 2; side++) {
            int term = atom.terms[side];
            atom.terms[side] = walk(bound, is_body && term < 0 ? term - APART : term);
        }
        if (!is_fact(atom, query)) made->atoms[made->size++] = atom;
    }
    for (int i = 0; i < made->size; i++)
        for (int side = 0; side < 2; side++) {
            int *term = &made->atoms[i].terms[side];
            if (*term >= 0) continue;
            if (!number[-1 - *term]) number[-1 - *term] = ++next;
            *term = -number[-1 - *term];
        }
    return 1;
}

static int same_goal(const Goal *x, const Goal *y) {
    return x->size == y->size && memcmp(x->atoms, y->atoms, x->size * sizeof(Atom)) == 0;
}

static double score(const Goal *goal) { /* fewest atoms, then fewest variables */
    int most = 0;
    for (int i = 0; i < goal->size; i++)
        for (int side = 0; side < 2; side++)
            if (-goal->atoms[i].terms[side] > most) most = -goal->atoms[i].terms[side];
    return goal->size ? -(goal->size + most / 64.0) : 0;
}

static void print_term(int term) {
    if (term < 0) printf("\"?%d\"", -1 - term);
    else printf("\"%s\"", constants[term]);
}

static void print_atom(Atom atom) {
    printf("[\"%s\", ", predicates[atom.predicate]);
    print_term(atom.terms[0]), printf(", "), print_term(atom.terms[1]), printf("]");
}

static void print_goal(const Goal *goal) {
    printf("[");
    for (int i = 0; i < goal->size; i++) printf(i ? ", " : ""), print_atom(goal->atoms[i]);
    printf("]");
}

static void print_program(void) {
    printf("{\"trace\": 1, \"engine\": {\"name\": \"c-prover\", \"variables\": \"canonical\"}, \"policy\": \"shortest\", ");
    printf("\"limits\": {\"max_depth\": %d}, \"rules\": [", MAX_DEPTH);
    for (int i = 0; i < COUNT(rules); i++) printf(i ? ", " : ""), print_goal(&rules[i]);
    printf("], \"facts\": [");
    for (int i = 0; i < COUNT(facts); i++) printf(i ? ", " : ""), print_atom(facts[i]);
    printf("]}\n");
}

/* List the successors of the last visited goal; a proof stands alone. Returns their number, 0 where none is left. */
static int take_step(const Goal *visited, int depth, Atom query, Successor *list) {
    int num = 0, num_facts = COUNT(facts);
#ifdef LOSES_LAST_FACT
    num_facts--;
#endif
    for (int i = 0; i < COUNT(rules) + num_facts; i++) {
        int is_rule = i < COUNT(rules), index = is_rule ? i : i - COUNT(rules), is_old = 0;
        Goal clause = is_rule ? rules[index] : (Goal){1, {facts[index]}};
        Successor made = {{0, {{0, {0, 0}}}}, is_rule, index};
        if ((!is_rule && same(facts[index], query)) || !resolve(&visited[depth], &clause, query, &made.goal)) continue;
        for (int d = 0; d <= depth; d++) is_old |= same_goal(&made.goal, &visited[d]);
        if (is_old) continue;
        if (made.goal.size == 0) return list[0] = made, 1;
        list[num++] = made;
    }
    return num;
}

static void prove(Atom query, int index, const char *side) {
    static Goal visited[MAX_DEPTH + 1];
    Successor list[MAX_SUCCESSORS];
    const char *outcome = "OPEN";
    visited[0] = (Goal){1, {query}};
    printf("{\"candidate\": "), print_atom(query), printf(", \"query\": %d, \"side\": \"%s\"}\n", index, side);
    for (int depth = 0; strcmp(outcome, "OPEN") == 0; depth++) {
        int num = take_step(visited, depth, query, list), choice = 0;
        for (int i = 1; i < num; i++)
            if (score(&list[i].goal) > score(&list[choice].goal)) choice = i;
        outcome = !num ? "FAILED" : !list[0].goal.size ? "PROVED" : depth + 1 == MAX_DEPTH ? "DEPTH_LIMIT" : "OPEN";
        if (num) visited[depth + 1] = list[choice].goal;
        printf("{\"goal\": "), print_goal(&visited[depth]), printf(", \"successors\": [");
        if (!num) printf("{\"kind\": \"FALSE\", \"score\": 0}");
        for (int i = 0; i < num; i++) {
            const Successor *each = &list[i];
            printf("%s{\"goal\": ", i ? ", " : ""), print_goal(&each->goal);
            printf(each->goal.size ? "" : ", \"kind\": \"TRUE\"");
            printf(", \"%s\": %d, \"score\": %.17g}", each->is_rule ? "rule" : "fact", each->clause, score(&each->goal));
        }
        printf("], \"choice\": %d, \"depth\": %d, \"outcome\": \"%s\"}\n", choice, depth, outcome);
    }
    printf("{\"end\": \"%s\"}\n", outcome);
}

int main(void) {
    print_program();
    for (int i = 0; i < COUNT(queries); i++) prove(queries[i], i, "head"), prove(queries[i], i, "tail");
    return 0;
}
