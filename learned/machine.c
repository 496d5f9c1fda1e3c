/* A state machine: 1 states, 5 letters. Written by "statemix compile".
   states: 0 start
   events: 0 write, 1 open-read, 2 open-write, 3 close, 4 read
   answers: 0 violation, 1 ok */
#include <stddef.h>
#include <stdint.h>

typedef uint8_t machine_state;

enum { machine_start = 0, machine_num_states = 1, machine_num_letters = 5 };

/* The state after each letter; machine_num_states where the letter cannot follow. */
static const machine_state machine_transitions[1][5] = {
    {0, 0, 0, 0, 0}
};

/* The answer after each letter; -1 where nothing is scored, -2 where the letter cannot follow. */
static const int32_t machine_answers[1][5] = {
    {0, 1, 1, 1, 0}
};

/* Read a letter: return the answer, and move on unless the letter is unknown or cannot follow. */
int32_t machine_step(machine_state *state, uint32_t letter) {
  if (*state >= 1 || letter >= 5 || machine_answers[*state][letter] == -2) return -2;
  int32_t answer = machine_answers[*state][letter];
  *state = machine_transitions[*state][letter];
  return answer;
}

/* Read letters: write an answer for each, and return how many were read before one was refused. */
size_t machine_run(machine_state *state, const uint32_t *letters, size_t count, int32_t *answers) {
  size_t read = 0;
  for (; read < count; ++read) {
    answers[read] = machine_step(state, letters[read]);
    if (answers[read] == -2) break;
  }
  return read;
}
